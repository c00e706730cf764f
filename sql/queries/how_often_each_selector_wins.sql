-- How often is each selector better than each other one?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_often_each_selector_wins.sql
--
-- One row per two selectors at equal repair, each of them as the first once.
-- n, won, lost   pairs of own task and size; those told apart at 5 % by paired tests corrected for their number
-- points         mean difference in accuracy, in percentage points; null where the tasks are texts
-- Empty where no two selectors were tested on the same task at equal size and repair.
WITH met AS (
    SELECT selector, rival AS other, repair, healing, metric, difference, p_holm FROM comparisons WHERE task <> 'all'
    UNION ALL
    SELECT rival, selector, repair, healing, metric, -difference, p_holm FROM comparisons WHERE task <> 'all'
)
SELECT selector, repair, healing, other, count(*) AS n, count(*) FILTER (p_holm < 0.05 AND difference > 0) AS won,
    count(*) FILTER (p_holm < 0.05 AND difference < 0) AS lost, 100 * avg(difference) FILTER (metric <> 'nll') AS points
FROM met GROUP BY selector, repair, healing, other
ORDER BY selector <> 'accuracy', selector, healing <> 'none', repair <> 'none', repair, healing, other;
