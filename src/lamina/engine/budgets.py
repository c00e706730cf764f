"""Memory limits of a job, in bytes, beyond its process and the weights.

The limits do not depend on the vocabulary or on the number of sets, runs and texts. What exceeds a
limit is done in turns, or waits in a file. Memory is requested from these numbers before a job
starts, so this module does not import torch.
"""

HOST_BYTES = 2 << 30
"""Memory of one pass on a CPU. Jobs request it in addition to that of libraries and weights."""
LOGIT_NUMBERS = 1 << 26
"""Number of logits in memory at a time: 256 MiB in float32."""
PATCH_BYTES = 1 << 30
"""Bytes of patches that wait in memory for the passes that apply them."""
SUM_BYTES = 2 << 30
"""Bytes of sums that one pass collects for repairs. If the sums of `LEAST_RUNS` runs take more,
that is the limit."""
LEAST_RUNS = 8

_DOUBLE_BYTES = 8
_FIT_MATRICES = 6  # C × C matrices that the fit of one run needs in addition to the sums


def sums_bytes(n_runs: int, n_starts: int, n_channels: int) -> int:
    """Bytes of the sums for repairs of `n_runs` runs with `n_starts` different starts.

    Each split, the fit samples and the held-out ones, has C² numbers per run and per start.
    """
    return 2 * (n_runs + n_starts) * n_channels**2 * _DOUBLE_BYTES


def sums_budget(n_channels: int) -> int:
    """Bytes of sums that one pass may collect."""
    return max(SUM_BYTES, sums_bytes(LEAST_RUNS, LEAST_RUNS, n_channels))


def fit_bytes(n_channels: int, n_runs: int) -> int:
    """Bytes of the sums of `n_runs` runs, collected in turns, and of the matrices of one fit."""
    sums = min(sums_bytes(n_runs, n_runs, n_channels), sums_budget(n_channels))
    return sums + _FIT_MATRICES * n_channels**2 * _DOUBLE_BYTES


def repair_peak_bytes(n_channels: int) -> int:
    """Bytes that fitting repairs and waiting patches take beyond those of a pass."""
    many_runs = 1 + SUM_BYTES // sums_bytes(1, 1, n_channels)
    return fit_bytes(n_channels, many_runs + LEAST_RUNS) - HOST_BYTES + PATCH_BYTES
