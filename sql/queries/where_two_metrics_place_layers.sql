-- Where do accuracy and another metric place the same units?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_two_metrics_place_layers.sql
--
-- One row per metric and pair of places among the units that table agreements compares, which are those of the middle,
-- without `edge` ones at either end; `count` says how many tasks have a unit there.
-- within                mean over tasks of the rank correlation with accuracy, over all units; within_low, within_high: the
--                       least and the most
-- misranked             share of units in another place, with its 95 % interval
-- Empty where no calibration has both accuracy and another metric defined.
WITH told AS (
    SELECT model, component, metric, any_value(n_units) AS n_units, any_value(n_calibrations) AS n_calibrations,
        any_value(n_samples) AS n_samples, any_value(calibrations) AS calibrations,
        max(value) FILTER (statistic = 'misranked') AS misranked,
        max(ci_low) FILTER (statistic = 'misranked') AS misranked_low,
        max(ci_high) FILTER (statistic = 'misranked') AS misranked_high
    FROM agreements WHERE statistic <> 'reliability' GROUP BY ALL
),
scored AS (
    SELECT model, component, calibration, metric, unit, rank,
        row_number() OVER (every ORDER BY layer) AS depth, count(*) OVER every AS n_all
    FROM relevance WHERE selector = 'base' AND removed = 0
    WINDOW every AS (PARTITION BY model, component, calibration, metric)
),
placed AS (
    SELECT t.*, s.unit, t.metric = s.metric AS by_metric,
        row_number() OVER (PARTITION BY t.model, t.component, t.metric, calibration, s.metric ORDER BY rank) AS place
    FROM (SELECT *, unnest(string_split(calibrations, ', ')) AS calibration FROM told) AS t
    JOIN scored AS s USING (model, component, calibration)
    WHERE s.metric IN ('accuracy', t.metric)
        AND s.depth > (n_all - n_units) / 2 AND s.depth <= (n_all + n_units) / 2
)
FROM (
    SELECT a.model, a.component, a.metric, a.place AS place_by_accuracy, b.place AS place_by_metric, count(*) AS count,
        a.n_units, a.n_calibrations, a.n_samples, a.misranked, a.misranked_low, a.misranked_high,
        (SELECT avg(spearman) FROM task_agreements AS t WHERE (t.model, t.component, t.metric)
            = (a.model, a.component, a.metric)) AS within,
        (SELECT min(spearman) FROM task_agreements AS t WHERE (t.model, t.component, t.metric)
            = (a.model, a.component, a.metric)) AS within_low,
        (SELECT max(spearman) FROM task_agreements AS t WHERE (t.model, t.component, t.metric)
            = (a.model, a.component, a.metric)) AS within_high
    FROM placed AS a JOIN placed AS b USING (model, component, metric, calibration, unit)
    WHERE NOT a.by_metric AND b.by_metric GROUP BY ALL
)
ORDER BY model, component <> 'layer', component, metric, place_by_accuracy, place_by_metric;
