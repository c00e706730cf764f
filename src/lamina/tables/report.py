"""The tables that are computed from other tables, and the jobs of a run."""

from lamina.tables.columns import CALIBRATION_KEYS, MODEL_KEYS, VARIANT_KEYS, Column, Table

AGREEMENTS = Table(
    grain=(
        "One row per model, kind of unit, metric, statistic and calibrations: how a metric agrees "
        "with accuracy relevance over all units of the base model and all calibrations that both "
        "are defined on [arXiv 2605.14075, C.2, C.3]. The first and last two layers of eight or "
        "more are left out. No rows of a metric that gives all units the same score. And, "
        "statistic reliability, how a metric agrees with itself from other samples, calibration "
        "by calibration."
    ),
    columns={
        **MODEL_KEYS,
        "component": Column("string", "Kind of unit: layer, attention or mlp."),
        "metric": Column("string", "The metric that is compared with accuracy."),
        "statistic": Column(
            "string",
            "pearson, spearman: correlation of the true scores, those of endlessly many samples: "
            "larger than that of the measured ones, whose noise is taken off. misranked, "
            "badly_misranked: share of units in another place, and in one more than a quarter of "
            "the units away, as measured. variance_ratio: mean over units of the variance of "
            "standardised true scores across calibrations, accuracy's by the metric's. "
            "reliability: Spearman's correlation of two rankings of the units, each from as many "
            "other samples.",
        ),
        "value": Column("double", "The statistic."),
        "ci_low": Column(
            "double",
            "Lower end of its 95 % interval, of true scores by a paired bootstrap over samples "
            "without its bias; for shares, what surely is misranked; for reliability, over true "
            "scores that these may come from.",
        ),
        "ci_high": Column("double", "Upper end; for shares, what may be misranked."),
        "p_value": Column(
            "double",
            "variance_ratio: two-sided Wilcoxon signed-rank test of the variances, unit by unit; "
            "null elsewhere, and where they are equal.",
        ),
        "n_units": Column("int64", "Units compared."),
        "calibrations": Column("string", "Names of the calibrations, separated by `, `."),
        "n_calibrations": Column("int64", "Their number."),
        "n_samples": Column("int64", "Samples of these calibrations together."),
    },
)

DISSOCIATIONS = Table(
    grain=(
        "One row per model, kind of unit, pair of calibrations and unit: how much more accuracy "
        "relevance the unit of the unpruned model has for one than for the other. Calibrations on "
        "which the model is at chance are left out."
    ),
    columns={
        **CALIBRATION_KEYS,
        "rival": Column("string", "The calibration that it is compared with."),
        "component": Column("string", "Kind of unit: layer, attention or mlp."),
        "unit": Column("string", "The unit."),
        "layer": Column("int64", "Its layer."),
        "difference": Column(
            "double",
            "Accuracy relevance on calibration less that on rival: above 0 the unit matters more "
            "to the former.",
        ),
        "ci_low": Column(
            "double",
            "Lower end of its 95 % interval over the samples of both, from the draws behind the "
            "intervals of relevance.",
        ),
        "ci_high": Column("double", "Upper end of its 95 % interval."),
        "p_value": Column("double", "Two-sided p of no difference, from the same draws."),
        "q_value": Column(
            "double",
            "p_value corrected for the number of units of the pair [Benjamini and Hochberg 1995].",
        ),
        "null_low": Column(
            "double",
            "Lower end of the band that holds 95 % of the differences between random halves of "
            "one calibration: the wider one of the two calibrations'. Halves are smaller than the "
            "whole, so the band is wider than needed.",
        ),
        "null_high": Column("double", "Upper end of the band."),
        "sure": Column("bool", "Whether q_value is at most 0.05 and difference outside the band."),
        "n_samples": Column("int64", "Samples of calibration."),
        "n_rival": Column("int64", "Samples of rival."),
    },
)

HANDLES = Table(
    grain=(
        "One row per variant of the studies: a short name, which `lamina export` takes. It holds "
        "for this configuration."
    ),
    columns={
        "handle": Column(
            "string",
            "Letters of the model, calibration and selector, the number of removed units, and a "
            "letter of repair and healing if there are any: A3, A3b.",
        ),
        **VARIANT_KEYS,
    },
)

GATES = Table(
    grain=(
        "One row per variant, and task or text on which its study demands something "
        "(`gates` of a study)."
    ),
    columns={
        **VARIANT_KEYS,
        "task": Column("string", "Benchmark task or text of the gate."),
        "keep": Column(
            "double",
            "Share of the base model's number that must be left, 0 to 1; null where floor is set.",
        ),
        "floor": Column("double", "Least value of the task's main metric; null where keep is set."),
    },
)

COMPARISONS = Table(
    grain=(
        "One row per pair of selectors, size, repair and own benchmark task, by the task's main "
        "metric, and one for all of these tasks together, where calibration and task are 'all': "
        "paired tests over the same test documents."
    ),
    columns={
        **MODEL_KEYS,
        "calibration": Column(
            "string",
            "Calibration of both variants; all for the mean over calibrations and their own tasks.",
        ),
        "task": Column(
            "string",
            "Own benchmark task of the calibration; all for the mean, which leaves perplexities "
            "out.",
        ),
        "metric": Column(
            "string",
            "Metric of the documents' values: nll for a perplexity; accuracy for the mean, "
            "whatever the tasks call it.",
        ),
        "removed": Column("int64", "Size of both variants' plans."),
        "repair": Column(
            "string",
            "Repair of both variants; none without one. `as chosen`: each plan with the repair "
            "with which its selector chose it (`repair` of table plans), if any plan of the size "
            "was chosen with one.",
        ),
        "healing": Column("string", "Healing of both variants; none without one."),
        "selector": Column(
            "string",
            "One selector; every pair stands once, accuracy first, else by name.",
        ),
        "rival": Column("string", "The other selector."),
        "difference": Column(
            "double",
            "Mean over documents by which selector is better than rival, in the unit of the "
            "metric.",
        ),
        "ci_low": Column(
            "double",
            "Lower end of its 95 % interval, of this pair alone: not corrected for the number of "
            "pairs.",
        ),
        "ci_high": Column("double", "Upper end of its 95 % interval."),
        "n_samples": Column("int64", "Test documents that both answered."),
        "n_different": Column("int64", "Those of them on which the two values differ."),
        "p_value": Column(
            "double",
            "Two-sided p of no difference, by flipping the signs of documents' differences; 1 if "
            "none differ.",
        ),
        "p_holm": Column(
            "double",
            "p_value corrected for all pairs and tasks of the same model, size and repair (Holm); "
            "rows for all tasks together are corrected among themselves.",
        ),
    },
)

JOBS = Table(
    grain="One row per job of the workflow that Snakemake timed.",
    columns={
        "rule": Column("string", "Name of the rule."),
        "wildcards": Column(
            "string",
            "Wildcards of the job as name=value, comma-separated; empty where the record names "
            "none.",
        ),
        "seconds": Column("double", "Wall time, in seconds."),
        "cpu_seconds": Column(
            "double",
            "CPU time of the job and its children, in seconds. Null if too short to sample, or "
            "run by a fork.",
        ),
        "max_rss_mb": Column(
            "double",
            "Largest resident memory, in MB. Null if too short to sample, or run by a fork.",
        ),
        "device": Column("string", "gpu where the job asked for one, else cpu."),
    },
)
