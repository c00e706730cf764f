"""Sections `sweep` and `benchmark`: how the work is cut into jobs."""

from lamina.config.entry import Entry, option


class Sweep(Entry):
    """How a sweep is cut into jobs and batches."""

    blocks: int = option("Jobs per sweep. With one GPU, 1; with several, as many as there are GPUs.", 1, ge=1)
    tokens: int = option("Tokens in one batch, over all streams of the sweep. Bounds the memory.", 16384, ge=64)


class Benchmark(Entry):
    """How the benchmarks are cut into jobs."""

    blocks: int = option("Jobs over which the variants of one calibration are spread, per task.", 1, ge=1)
