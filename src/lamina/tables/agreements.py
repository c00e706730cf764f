"""Table `agreements`, from the sweeps of unpruned models."""

from lamina.tables.columns import FLOAT, INT, MODEL, STRING, Columns

GRAIN = (
    "One row per model, kind of unit, metric and statistic: how a metric agrees with accuracy relevance over all units "
    "of the base model and all calibrations that both are defined on [arXiv 2605.14075, C.2, C.3]. The first and last "
    "two layers of eight or more are left out."
)

COLUMNS: Columns = MODEL | {
    "component": (STRING, "Kind of unit: layer, attention or mlp."),
    "metric": (STRING, "The metric that is compared with accuracy."),
    "statistic": (
        STRING,
        "pearson, spearman: correlation of the scores. misranked, badly_misranked: share of units in another place, "
        "and in one more than a quarter of the units away. variance_ratio: mean over units of the variance of "
        "standardised scores across calibrations, accuracy's by the metric's.",
    ),
    "value": (FLOAT, "The statistic."),
    "ci_low": (
        FLOAT,
        "Lower end of its 95 % interval: of a paired bootstrap over samples; for shares, what surely is misranked.",
    ),
    "ci_high": (FLOAT, "Upper end; for shares, what may be misranked."),
    "p_value": (
        FLOAT,
        "variance_ratio: two-sided Wilcoxon signed-rank test of the variances, unit by unit; null elsewhere, and where "
        "they are equal.",
    ),
    "n_units": (INT, "Units compared."),
    "calibrations": (STRING, "Names of the calibrations, separated by `, `."),
    "n_calibrations": (INT, "Their number."),
    "n_samples": (INT, "Samples of these calibrations together."),
}
