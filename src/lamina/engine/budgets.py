"""Bytes that work may take in addition to process and weights.

They do not depend on the number of sets, runs and texts, nor on the vocabulary: what is larger is
done in turns, or waits in a file. Jobs ask for memory by these numbers before they start, so
nothing here imports torch.
"""

HOST_BYTES = 2 << 30
"""One pass on a CPU: what jobs ask for in addition to the libraries and the weights."""
LOGIT_NUMBERS = 1 << 26
"""Numbers of logits at a time: 256 MiB in float32."""
PATCH_BYTES = 1 << 30
"""Patches that wait in memory for the passes that apply them."""
SUM_BYTES = 2 << 30
"""Sums that one pass collects for repairs, or those of `LEAST_RUNS` runs if these take more."""
LEAST_RUNS = 8

_DOUBLE_BYTES = 8
_FIT_MATRICES = 6  # of C² numbers, which the fit of one run needs in addition to the sums


def sums_bytes(n_runs: int, n_starts: int, n_channels: int) -> int:
    """Bytes of the sums for repairs of so many runs with so many different starts.

    Both splits, the samples of the fit and the held-out ones, have C² numbers for each run and for
    each start.
    """
    return 2 * (n_runs + n_starts) * n_channels**2 * _DOUBLE_BYTES


def sums_budget(n_channels: int) -> int:
    """Bytes of sums that one pass may collect."""
    return max(SUM_BYTES, sums_bytes(LEAST_RUNS, LEAST_RUNS, n_channels))


def fit_bytes(n_channels: int, n_runs: int) -> int:
    """Bytes of the sums of so many runs in turns, and of the matrices of one fit."""
    sums = min(sums_bytes(n_runs, n_runs, n_channels), sums_budget(n_channels))
    return sums + _FIT_MATRICES * n_channels**2 * _DOUBLE_BYTES


def repair_peak_bytes(n_channels: int) -> int:
    """Bytes beyond those of a pass that applies repairs: for their fits and waiting patches."""
    many_runs = 1 + SUM_BYTES // sums_bytes(1, 1, n_channels)
    return fit_bytes(n_channels, many_runs + LEAST_RUNS) - HOST_BYTES + PATCH_BYTES
