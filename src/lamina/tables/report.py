"""The tables that are computed from other tables, and the jobs of a run."""

from lamina.tables.columns import CALIBRATION_KEYS, MODEL_KEYS, VARIANT_KEYS, Column, Table

AGREEMENTS = Table(
    grain=(
        "One row per model, kind of unit, metric, statistic and calibrations: how a metric "
        "agrees with accuracy relevance over all units of the base model and all calibrations "
        "that both are defined on [arXiv 2605.14075, C.2, C.3]. The first and last two layers of "
        "eight or more are left out. A metric that gives all units the same score has no rows. "
        "Rows of statistic reliability say how a metric agrees with itself on other samples, for "
        "each calibration."
    ),
    columns={
        **MODEL_KEYS,
        "component": Column("string", "Kind of unit: layer, attention or mlp."),
        "metric": Column("string", "The metric that is compared with accuracy."),
        "statistic": Column(
            "string",
            "pearson, spearman: correlation of the true scores (from infinitely many samples), "
            "corrected for sampling noise and therefore larger than that of the measured scores. "
            "misranked, badly_misranked: share of units with another rank, and with a rank more "
            "than a quarter of the units away, as measured. variance_ratio: variance of "
            "standardised true scores across calibrations, mean over units, of accuracy divided "
            "by that of the metric. reliability: Spearman correlation of two rankings, each from "
            "as many other samples.",
        ),
        "value": Column("double", "The statistic."),
        "ci_low": Column(
            "double",
            "Lower end of its 95 % interval. For true scores: a bias-corrected paired bootstrap "
            "over samples. For shares: what is misranked with certainty. For reliability: over "
            "the true scores that are compatible with the measured ones.",
        ),
        "ci_high": Column(
            "double", "Upper end of its 95 % interval; for shares, what is possibly misranked."
        ),
        "p_value": Column(
            "double",
            "variance_ratio: two-sided Wilcoxon signed-rank test of the variances, unit by unit; "
            "null elsewhere, and where they are equal.",
        ),
        "n_units": Column("int64", "Number of units compared."),
        "calibrations": Column("string", "Names of the calibrations, separated by `, `."),
        "n_calibrations": Column("int64", "Number of calibrations."),
        "n_samples": Column("int64", "Number of samples of these calibrations together."),
    },
)

DISSOCIATIONS = Table(
    grain=(
        "One row per model, kind of unit, pair of calibrations and unit: how much more relevant "
        "the unit of the unpruned model is for one calibration than for the other, by accuracy. "
        "Calibrations on which the model is at chance are left out."
    ),
    columns={
        **CALIBRATION_KEYS,
        "rival": Column("string", "The calibration with which it is compared."),
        "component": Column("string", "Kind of unit: layer, attention or mlp."),
        "unit": Column("string", "The unit."),
        "layer": Column("int64", "Its layer."),
        "difference": Column(
            "double",
            "Accuracy relevance on calibration minus that on rival: above 0, the unit matters "
            "more for calibration.",
        ),
        "ci_low": Column(
            "double",
            "Lower end of its 95 % interval over the samples of both, from the draws that give "
            "the intervals of relevance.",
        ),
        "ci_high": Column("double", "Upper end of its 95 % interval."),
        "p_value": Column("double", "Two-sided p-value of no difference, from the same draws."),
        "q_value": Column(
            "double",
            "p_value corrected for the number of units of the pair [Benjamini and Hochberg 1995].",
        ),
        "null_low": Column(
            "double",
            "Lower end of the band that holds 95 % of the differences between random halves of "
            "one calibration; the wider band of the two calibrations. Halves are smaller than "
            "the whole, so the band is conservative.",
        ),
        "null_high": Column("double", "Upper end of the band."),
        "sure": Column(
            "bool",
            "Whether the difference is significant: q_value is at most 0.05, and difference lies "
            "outside the band.",
        ),
        "n_samples": Column("int64", "Number of samples of calibration."),
        "n_rival": Column("int64", "Number of samples of rival."),
    },
)

HANDLES = Table(
    grain=(
        "One row per variant of the studies: a short name, which commands such as `lamina "
        "export` accept. It is valid for this configuration."
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
        "One row per variant, and task or text for which its study sets a requirement (`gates` "
        "of a study)."
    ),
    columns={
        **VARIANT_KEYS,
        "task": Column("string", "Benchmark task or text of the gate."),
        "keep": Column(
            "double",
            "Share of the base model's score that must be kept, 0 to 1; null if floor is set.",
        ),
        "floor": Column("double", "Required value of the task's main metric; null if keep is set."),
    },
)

COMPARISONS = Table(
    grain=(
        "One row per pair of selectors, size, repair and own benchmark task, by the task's main "
        "metric: paired tests over the same test documents. One more row covers all of these "
        "tasks together; its calibration and task are 'all'."
    ),
    columns={
        **MODEL_KEYS,
        "calibration": Column(
            "string",
            "Calibration of both variants; all for the mean over calibrations and their own tasks.",
        ),
        "task": Column(
            "string",
            "Own benchmark task of the calibration; all for the mean, which excludes perplexities.",
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
            "with which its selector chose it (`repair` of table plans); only if a plan of this "
            "size was chosen with a repair.",
        ),
        "healing": Column("string", "Healing of both variants; none without one."),
        "selector": Column(
            "string",
            "First selector of the pair. Each pair occurs once, in order of name, but accuracy "
            "first.",
        ),
        "rival": Column("string", "Second selector of the pair."),
        "difference": Column(
            "double",
            "Mean over documents of how much better selector is than rival, in the unit of the "
            "metric.",
        ),
        "ci_low": Column(
            "double",
            "Lower end of its 95 % interval, not corrected for the number of pairs.",
        ),
        "ci_high": Column("double", "Upper end of its 95 % interval."),
        "n_samples": Column("int64", "Number of test documents on which both were measured."),
        "n_different": Column("int64", "Number of these documents on which the two values differ."),
        "p_value": Column(
            "double",
            "Two-sided p-value of no difference, by randomly flipping the signs of the "
            "documents' differences; 1 if none differ.",
        ),
        "p_holm": Column(
            "double",
            "p_value after Holm's correction for all pairs and tasks of the same model, size and "
            "repair; rows for all tasks together are corrected separately.",
        ),
    },
)

JOBS = Table(
    grain="One row per job of the workflow that Snakemake timed.",
    columns={
        "rule": Column("string", "Name of the rule."),
        "wildcards": Column(
            "string",
            "Wildcards of the job as name=value, comma-separated; empty if none were recorded.",
        ),
        "seconds": Column("double", "Wall time, in seconds."),
        "cpu_seconds": Column(
            "double",
            "CPU time of the job and its children, in seconds. Null if the job was too short to "
            "sample or ran in a fork.",
        ),
        "max_rss_mb": Column(
            "double",
            "Peak resident memory, in MB. Null if the job was too short to sample or ran in a "
            "fork.",
        ),
    },
)
