"""How much longer a run took than `lamina prune --minutes` allowed."""

import os

from lamina_workflow.cost.forecast import format_duration

BUSY_FACTOR = 1.5  # processes that compute or wait, by the number of cores


def describe_overtime(minutes: float, seconds: float, load: float) -> list[str]:
    """Lines about a run that exceeded its time; none if it did not.

    minutes: The time allowed.
    seconds: The time taken.
    load: The load average over the last quarter of an hour: processes that computed or waited.
    """
    seconds_over = seconds - 60 * minutes
    if seconds_over <= 0:
        return []
    lines = [
        f"over time     The run took {format_duration(seconds)}, "
        f"{format_duration(seconds_over)} more than --minutes {minutes:g}. Table jobs has the "
        "time of each job."
    ]
    n_cores = os.cpu_count() or 1
    if load > BUSY_FACTOR * n_cores:
        lines.append(
            f"              The machine was busy: in the last 15 minutes, on average {load:.1f} "
            f"processes shared its {n_cores} cores."
        )
    return lines
