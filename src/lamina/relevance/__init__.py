"""How relevant each unit is on a calibration, by several metrics, and with what uncertainty.

A sweep measures every unit on every sample (`lamina.engine`). From its table

- `columns` turns it into arrays and weighted means over samples,
- `protocol` says what a metric is, and `metrics/` holds them, one file per family,
- `score` ranks units by one metric and makes the rows of table `relevance`,
- `statistics` has the error bars, `true_scores` estimates for infinitely many samples,
- `stability`, `metric_agreement` and `dissociation` compare rankings: of two halves of a
  calibration, of two metrics, of two tasks.

Nothing here runs a model.
"""
