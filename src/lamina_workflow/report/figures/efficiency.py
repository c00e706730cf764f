"""The gain from removing layers: latency and throughput against the base model."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lamina.variant import describe_size
from lamina_workflow.report.answers import group_rows
from lamina_workflow.report.figures import style
from lamina_workflow.report.paired_tests import NOISY, ratio_interval

TITLE = "What pruning buys"
POSITION = 90
TABLES = ("efficiency", "plans", "models")
QUERIES = ("what_pruning_buys",)
BASE_STYLE: style.LineStyle = {"color": style.BASE_MODEL, "linestyle": "--", "linewidth": 0.9}
MEASURES = {
    "latency_ratio": "prefill latency",
    "tokens_per_second_ratio": "tokens per second",
}


def draw(rows: style.Rows, theme: style.Theme) -> Figure:
    """Two panels per model: one row per size and repair, one mark per number of runs."""
    models = group_rows(rows, "model")
    run_counts = sorted({row["runs"] for row in rows})
    marker_styles = style.assign_markers([format_runs(count) for count in run_counts], 4.5)
    most_variants = style.count_most(models.values(), name_variant)
    height = 1.1 + most_variants * (0.2 + 0.07 * len(marker_styles))
    figure, panels = style.make_panels(2 * len(models), 4.6, height, 2, sharey=len(models) == 1)
    for model_index, ((model,), model_rows) in enumerate(models.items()):
        model_panels = panels[2 * model_index : 2 * model_index + 2]
        for axes, (measure, title) in zip(model_panels, MEASURES.items(), strict=True):
            RatioPanel(axes, model_rows, measure, marker_styles).draw()
            axes.set_title(theme.format_title(model, title))
    style.add_legend(figure, [*marker_styles.items(), ("base model", BASE_STYLE)], 6)
    return figure


class RatioPanel:
    """The ratios of one model's variants to the base model, in one measure."""

    def __init__(
        self,
        axes: Axes,
        rows: style.Rows,
        measure: str,
        marker_styles: dict[str, style.LineStyle],
    ) -> None:
        self.axes = axes
        self.measured_rows = [row for row in rows if row[measure] is not None]
        self.measure = measure
        self.markers = marker_styles
        self.runs_by_variant = _group_runs(rows)  # one row of the panel for each variant

    def draw(self) -> None:
        self.axes.axvline(1, **BASE_STYLE)
        for row in self.measured_rows:
            self._draw_ratio(row)
        if not self.axes.containers:
            self.axes.set_xlim(0.5, 1.5)
        self.axes.set_xlabel("ratio to base model")
        style.set_row_names(self.axes, list(self.runs_by_variant))

    def _draw_ratio(self, row: dict[str, Any]) -> None:
        """A ratio with its 95 % interval, or a note if the interval is too wide to be useful."""
        ratio = row[self.measure]
        stderr = row[f"{self.measure}_stderr"]
        ci_low = ci_high = ratio
        if stderr is not None:
            ci_low, ci_high = ratio_interval(ratio, stderr, row["repeats"])
        runs = format_runs(row["runs"])
        y = self._position(row)
        if ci_high > NOISY * ci_low:
            note = f"  {runs}: too noisy"
            self.axes.text(1, y, note, va="center", fontsize=7, color=self.markers[runs]["color"])
        else:
            ends = [[ratio - ci_low], [ci_high - ratio]]
            self.axes.errorbar(ratio, y, xerr=ends, capsize=2, **self.markers[runs])
        interval = f"{ratio:.3f} [{ci_low:.3f}, {ci_high:.3f}]"
        text = f"{name_variant(row)}, {runs}: {interval}, n = {row['repeats']}"
        style.add_hints(self.axes, [(ratio, y, text)])

    def _position(self, row: dict[str, Any]) -> float:
        """The y position of a mark: marks of one variant are spread around its row."""
        variant = name_variant(row)
        run_counts = self.runs_by_variant[variant]
        row_index = list(self.runs_by_variant).index(variant)
        offset = run_counts.index(row["runs"]) + 0.5 - len(run_counts) / 2
        return row_index + offset * 0.24


def _group_runs(rows: style.Rows) -> dict[str, list[int]]:
    """The numbers of runs of layers that were timed, by the name of the variant.

    Variants with the fewest removed layers come first.
    """
    runs_by_variant: dict[str, list[int]] = {}
    for row in sort_timings(rows):
        run_counts = runs_by_variant.setdefault(name_variant(row), [])
        if row["runs"] not in run_counts:
            run_counts.append(row["runs"])
    return runs_by_variant


def sort_timings(rows: style.Rows) -> style.Rows:
    """The timings by number of removed layers, those without a repair first."""
    return sorted(
        rows, key=lambda row: (row["removed"], row["repair"] != "none", row["repair"], row["runs"])
    )


def format_runs(count: int) -> str:
    if not count:
        return "nothing removed"
    return f"removed in {count} run" if count == 1 else f"removed in {count} runs"


def name_variant(row: dict[str, Any]) -> str:
    """A timed variant's size and repair, and what else distinguishes it from others."""
    name = f"{describe_size(row['removed'])}, {style.format_repair(row['repair'], row['healing'])}"
    if row["component"] not in (None, "layer"):
        name += f": {row['composition']}"
    if row["n_alike"] > 1:
        name += f" ({row['calibration']}/{row['selector']})"
    return name


def write_caption(rows: style.Rows) -> str:
    first = rows[0]
    timings = {row["timed"] for row in rows}
    sample_counts = style.format_counts(row["repeats"] for row in rows)
    return (
        "The cost depends on the shapes and types of the layers that are left, and on the patches. "
        "Healing is merged into the weights. So of variants that cost the same one was timed, in "
        f"turn with the base model ({len(timings):,} variants, {sample_counts} repetitions each). "
        "Points: geometric means over repetitions with 95 % intervals (Student's t of the "
        "logarithms). A point is left out where the upper end of its "
        f"interval is more than {NOISY} times the lower end. Latency is that of the prompt alone "
        f"({first['prompt']} tokens); {first['generate']} tokens are generated after it. Batch "
        f"size {first['batch']}, {first['dtype']} on {first['device']}. The CSV file also has "
        "parameters and peak memory."
    )
