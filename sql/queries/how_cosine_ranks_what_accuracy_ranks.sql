-- How does cosine rank the layers that accuracy ranks first, second and so on?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_cosine_ranks_what_accuracy_ranks.sql
--
-- One row per pair of ranks that occurs, over all calibrations of a model, without the first and
-- last two of eight or more units [arXiv 2605.14075, figure 3 B].
-- accuracy_rank, cosine_rank   1 = least relevant; at equal scores the deeper unit is less relevant
-- n                            number of units with these two ranks, of n_all
-- n_samples                    samples of all these calibrations
-- misranked, badly             shares of units whose two ranks differ, and differ by more than a
--                              quarter of n_units; *_low, *_high: 95 % bounds of the true values
--                              (table agreements), null where unknown
-- Empty where no study of maps lists both accuracy and cosine, or the base model is at chance on all its calibrations.
WITH pairs AS (
    SELECT model, component, n_units, accuracy_rank, cosine_rank, count(*) AS n FROM inner_units GROUP BY ALL
),
totals AS (
    SELECT model, component, n_units, count(*) AS n_all, count(DISTINCT calibration) AS n_calibrations,
        avg((accuracy_rank <> cosine_rank)::BIGINT) AS misranked,
        avg((abs(accuracy_rank - cosine_rank) > n_units / 4)::BIGINT) AS badly
    FROM inner_units GROUP BY ALL
),
sampled AS (
    SELECT model, component, n_units, sum(n_samples)::BIGINT AS n_samples FROM (
        SELECT model, component, calibration, any_value(n_units) AS n_units, max(accuracy_samples) AS n_samples
        FROM inner_units GROUP BY ALL)
    GROUP BY ALL
),
bounds AS (
    SELECT model, component, n_units,
        any_value(ci_low) FILTER (statistic = 'misranked') AS misranked_low,
        any_value(ci_high) FILTER (statistic = 'misranked') AS misranked_high,
        any_value(ci_low) FILTER (statistic = 'badly_misranked') AS badly_low,
        any_value(ci_high) FILTER (statistic = 'badly_misranked') AS badly_high
    FROM agreements WHERE metric = 'cosine' GROUP BY ALL
)
SELECT model, component, n_units, accuracy_rank, cosine_rank, n, n_all, n_calibrations, n_samples,
    misranked, misranked_low, misranked_high, badly, badly_low, badly_high
FROM pairs JOIN totals USING (model, component, n_units) JOIN sampled USING (model, component, n_units)
LEFT JOIN bounds USING (model, component, n_units)
ORDER BY model, component <> 'layer', component, n_units DESC, accuracy_rank, cosine_rank;
