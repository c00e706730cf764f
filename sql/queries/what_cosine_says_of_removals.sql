-- What does a layer's cosine say of what its removal costs?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_cosine_says_of_removals.sql
--
-- One row per unit of the base model and calibration, without the first and last two of eight or
-- more, which are outliers by every metric [arXiv 2605.14075, figure 3 A].
-- cosine     how far the unit turns the stream: 1 - cos
-- accuracy   share of the accuracy above chance that is lost without the unit
-- *_low, *_high, *_samples   95 % interval and number of samples
-- pearson    correlation of the two over the n_points units and calibrations of a model, with its
--            95 % interval if these were independent [Fisher 1921]
-- Empty where no study of maps lists both accuracy and cosine, or the base model is at chance on all its calibrations.
WITH correlated AS (
    SELECT model, component, corr(cosine, accuracy) AS pearson, count(*) AS n_points FROM inner_units GROUP BY ALL
),
reached AS (
    SELECT *, CASE WHEN n_points > 3 AND isfinite(pearson) THEN 1.959964 / sqrt(n_points - 3) END AS reach,
        atanh(greatest(least(pearson, 0.999999), -0.999999)) AS z
    FROM correlated
)
SELECT model, component, calibration, layer, cosine, cosine_low, cosine_high, cosine_samples,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, pearson, tanh(z - reach) AS pearson_low,
    tanh(z + reach) AS pearson_high, n_points
FROM inner_units JOIN reached USING (model, component)
ORDER BY model, component <> 'layer', component, calibration, layer;
