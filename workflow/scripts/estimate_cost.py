"""Count the work of a configuration from its models, calibrations and tasks, before any of it is done."""

from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from lamina.config.benchmarks import Perplexity
from lamina.config.configuration import Configuration
from lamina.cost.counting import counted
from lamina.cost.estimate import stages, works
from lamina.cost.peaks import peaks
from lamina.cost.tokens import Tokens
from lamina.data import calibrations, documents
from lamina.data.text import encode
from lamina.engine.footprint import Shape
from lamina.runtime.script import running
from lamina.stages.prepare import EstimateCost
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.load import load


def of_task(tested: Path, config: Configuration, known: dict[str, Tokens], total: Tokens) -> Tokens:
    """Tokens of a benchmark task: its samples are as long as those of the calibrations of it, or of all.

    Questions of the user's own have the same name as calibration and as benchmark.
    """
    task = tested.stem
    same = [c for c, entry in config.calibrations.items() if c in known and (entry.drawn == [task] or c == task)]
    own = known[same[0]] if same else total
    return own.scaled(store.read(tested).num_rows)


def of_text(entry: Perplexity, folder: str, trusted: bool) -> Tokens:
    """Tokens of a perplexity text, every window counted whole."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)
    path = documents.corpus_file(entry.text, entry.split, Path.cwd())
    lengths = [len(encode(tokenizer, text)) for text in documents.read_documents(path, entry.documents)]
    read = round(sum(lengths) * entry.window / (entry.stride or entry.window))
    longest = min(max(lengths), entry.window)
    return Tokens(len(lengths), read, read, read, longest, read)


def shape(manifest: dict[str, Any]) -> Shape:
    """The sizes that decide the memory of a model's passes."""
    config = AutoConfig.from_pretrained(
        manifest["path"], trust_remote_code=manifest["trust_remote_code"], local_files_only=True
    )
    dtype = config.dtype if manifest["dtype"] == "auto" else getattr(torch, manifest["dtype"])
    return Shape.of(config, (dtype or torch.float32).itemsize)


if __name__ == "__main__":
    with running(snakemake):
        job = EstimateCost.read(snakemake)
        config = load(job.config, Path.cwd())
        manifests, read = [Path(file) for file in job.manifests], [Path(file) for file in job.calibrations]
        models = {path.parent.name: seal.read_json(path) for path in manifests}
        drawn = {(path.parent.name, path.stem): counted(calibrations.read(path).samples) for path in read}
        tasks = {}
        for model, manifest in models.items():
            known = {calibration: tokens for (name, calibration), tokens in drawn.items() if name == model}
            for path in map(Path, job.tasks if known else []):
                tasks[model, path.stem] = of_task(path, config, known, reduce(Tokens.plus, known.values()))
            for text, entry in config.benchmarks.perplexity.items():
                tasks[model, text] = of_text(entry, manifest["path"], manifest["trust_remote_code"])
        jobs = list(works(config, models, drawn, tasks))
        sums = stages(jobs)
        shapes = {model: shape(manifest) for model, manifest in models.items()}
        for stage, memory in peaks(config, shapes, drawn, tasks).items():
            sums[stage].memory = memory
        early = sorted(name for name, entry in config.selectors.items() if entry.budget != "full")
        notes = [f"Selectors {', '.join(early)} let units leave early: their sweeps are counted in full, as the most."]
        written = {
            "stages": {name: asdict(stage) for name, stage in sums.items()},
            "jobs": {output: work.flops for work in jobs for output in work.outputs},
            "width": max(shape.channels for shape in shapes.values()),
            "notes": notes if early else [],
        }
        store.write_json(job.output, written)
