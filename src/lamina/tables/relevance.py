"""Table `relevance`, computed from sweeps."""

from lamina.tables.columns import FLOAT, INT, STRING, SWEPT, Columns

GRAIN = (
    "One row per metric and unit: relevance of the unit on a calibration, high = relevant, with a 95 % interval. Of a "
    "selector with a repair in the loop, it is what is lost of the unit once that is repaired."
)

COLUMNS: Columns = SWEPT | {
    "metric": (
        STRING,
        "Metric: accuracy (1 = all above chance lost, 0 = none, negative = better without), or another one of "
        "docs/choose.md.",
    ),
    "unit": (STRING, "Unit: 12, 12.attention or 12.mlp."),
    "layer": (INT, "Layer of the unit, 0 to L - 1, numbered in the base model."),
    "component": (STRING, "Kind of unit: layer, attention or mlp."),
    "score": (FLOAT, "Relevance in the unit of the metric; null where undefined (see reason)."),
    "ci_low": (
        FLOAT,
        "Lower end of the 95 % interval of score, over samples: of accuracy by counts of answers that stayed, were "
        "lost or won (Jeffreys' prior), of others by the bootstrap. Null for one sample; score itself for "
        "magnitude and random, which look at none.",
    ),
    "ci_high": (FLOAT, "Upper end of the 95 % interval of score."),
    "at_least": (
        FLOAT,
        "What score is at least where it is null because the unit left a sweep of budget exact: with nothing lost on "
        "the samples that it did not see. No estimate and no mean. Null elsewhere, for metric margin, and in tables of "
        "earlier versions.",
    ),
    "n_samples": (
        INT,
        "Number of samples behind score, or at_least: fewer than the calibration has where a budget let the unit leave "
        "early (random ones under race, the hardest under exact); 0 for magnitude, which looks at weights only.",
    ),
    "n_not_finite": (
        INT,
        "Samples on which the scores without the unit were not finite; their answers count as wrong. Null in tables of "
        "earlier versions.",
    ),
    "rank": (
        INT,
        "Place of the unit in the ranking of its sweep, 1 = least relevant, goes first; among equals the deeper one. "
        "Units that left early come after those that saw more samples. Null where the unpruned model is at chance.",
    ),
    "reason": (STRING, "Why score is null, and what the ranking fell back to; null in the ordinary case."),
}
