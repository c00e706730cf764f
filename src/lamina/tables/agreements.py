"""Table `agreements`, from the sweeps of unpruned models."""

from lamina.tables.columns import FLOAT, INT, MODEL, STRING, Columns

GRAIN = (
    "One row per model, kind of unit, metric, statistic and calibrations: how a metric agrees with accuracy relevance "
    "over all units of the base model and all calibrations that both are defined on [arXiv 2605.14075, C.2, C.3]. The "
    "first and last two layers of eight or more are left out. No rows of a metric that gives all units the same score. "
    "And, statistic reliability, how a metric agrees with itself from other samples, calibration by calibration."
)

COLUMNS: Columns = MODEL | {
    "component": (STRING, "Kind of unit: layer, attention or mlp."),
    "metric": (STRING, "The metric that is compared with accuracy."),
    "statistic": (
        STRING,
        "pearson, spearman: correlation of the true scores, those of endlessly many samples: larger than that of the "
        "measured ones, whose noise is taken off. misranked, badly_misranked: share of units in another place, and in "
        "one more than a quarter of the units away, as measured. variance_ratio: mean over units of the variance of "
        "standardised true scores across calibrations, accuracy's by the metric's. reliability: the correlation of the "
        "scores with those that as many other samples would give, 1 - noise / variance over units.",
    ),
    "value": (FLOAT, "The statistic."),
    "ci_low": (
        FLOAT,
        "Lower end of its 95 % interval, of true scores by a paired bootstrap over samples without its bias; for "
        "shares, what surely is misranked; for reliability, of units drawn from a normal distribution.",
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
