"""How relevant each unit of a model is on a calibration, by several metrics, and how sure that is.

A sweep measures every unit on every sample (`lamina.engine`). From its table

- `columns` makes arrays, and weighted means over samples,
- `protocol` says what a metric is, and `metrics/` holds them, a file for each family,
- `score` ranks units by one metric and makes the rows of table `relevance`,
- `statistics` has the error bars, `true_scores` what infinitely many samples would give,
- `stability`, `metric_agreement` and `dissociation` compare rankings: of two halves of a
  calibration, of two metrics, of two tasks.

Nothing here runs a model.
"""
