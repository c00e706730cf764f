"""Bytes that work may take beside process and weights, whatever the number of sets, runs and texts and the vocabulary.

What is larger is done in turns, or waits in a file. Jobs ask for memory by these numbers before they start, so nothing
here imports torch.
"""

HOST = 2 << 30  # one pass on a CPU: what jobs ask for beside the libraries and the weights
LOGITS = 1 << 26  # numbers of logits at a time: 256 MiB in float32
PATCHES = 1 << 30  # patches that wait in memory for the passes that apply them
SUMS = (
    2 << 30
)  # sums that one pass collects for repairs, or those of `RUNS` runs if these take more
RUNS = 8
_DOUBLE = 8


def sums_bytes(runs: int, starts: int, channels: int) -> int:
    """Bytes of the sums for repairs of so many runs with so many different starts.

    Both splits, the samples of the fit and those held out, have C² numbers for each run and for each start.
    """
    return 2 * (runs + starts) * channels**2 * _DOUBLE


def sums_budget(channels: int) -> int:
    """Bytes of sums that one pass may collect."""
    return max(SUMS, sums_bytes(RUNS, RUNS, channels))


def fitting(channels: int, runs: int) -> int:
    """Bytes of the sums of so many runs in turns, and of six matrices that the fit of one of them needs beside."""
    sums = min(sums_bytes(runs, runs, channels), sums_budget(channels))
    return sums + 6 * channels**2 * _DOUBLE


def repairing(channels: int) -> int:
    """Bytes beyond those of a pass where repairs of any number of runs are in place: for fits and waiting patches."""
    many_runs = 1 + SUMS // sums_bytes(1, 1, channels)
    return fitting(channels, many_runs + RUNS) - HOST + PATCHES
