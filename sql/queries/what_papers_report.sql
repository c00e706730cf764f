-- What do papers report for the same variants, and does this run agree?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_papers_report.sql
--
-- One row per number of config/papers/expected.csv that this run has measured too: models by their source, the rest by
-- the names that config/papers/*.yaml give. Read in the project's folder.
-- published, ours       share of right answers; stderr: of ours, over n_samples test documents
-- within                whether they differ by at most two standard errors; null where the error is unknown
-- Empty where no variant of a paper was benchmarked on a task of its table.
WITH published AS (
    UNPIVOT (SELECT * RENAME ("table" AS table_number) FROM read_csv('config/papers/expected.csv', types = {'paper': 'VARCHAR'}))
    ON COLUMNS(* EXCLUDE (paper, table_number, source, calibration, selector, removed, repair, healing))
    INTO NAME task VALUE published
)
SELECT paper, table_number, s.model, s.calibration, s.selector, s.removed, s.repair, s.healing, s.task, s.metric,
    published, s.value AS ours, s.stderr, s.value - published AS difference,
    abs(difference) <= 2 * s.stderr AS within, s.n_samples
FROM published AS p
JOIN models AS m USING (source)
JOIN scores AS s ON s.model = m.model AND s.task = p.task AND s.selector = p.selector AND s.removed = p.removed
    AND s.repair = p.repair AND s.healing = p.healing
    AND s.calibration = if(p.calibration = 'own', p.task, p.calibration)
ORDER BY paper, table_number, s.model, s.removed, s.calibration, s.selector, s.healing, s.task;
