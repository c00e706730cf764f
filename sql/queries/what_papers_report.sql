-- What do papers report for the same variants, and does this run agree?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_papers_report.sql
--
-- One row per number of config/papers/expected.csv that this run has measured too. Models are matched
-- by their source, the rest by the names in config/papers/*.yaml. A column of several tasks is their
-- mean. Replicates of a selector are averaged under the name of their group.
-- of                    model, named as in the paper
-- published, ours       accuracy or perplexity; stderr: standard error of ours over n_samples test
--                       documents, and over the replicates
-- within                whether the two differ by at most two standard errors; null where the error
--                       is unknown
-- Empty where no variant of a paper was benchmarked on the tasks of its table.
WITH printed AS (  -- a column without a number in this file has no type of its own
    UNPIVOT (FROM read_csv('config/papers/expected.csv', all_varchar = true))
    ON COLUMNS(* EXCLUDE (paper, "table", of, source, calibration, selector, removed, repair, healing, metric))
    INTO NAME task VALUE number
),
published AS (
    SELECT * EXCLUDE ("table", number) REPLACE (removed::BIGINT AS removed), "table"::INTEGER AS "table",
        number::DOUBLE AS published
    FROM printed
),
asked AS (SELECT p.*, unnest(string_split(p.task, ' ')) AS each FROM published AS p),
draws AS (SELECT DISTINCT model, selector FROM plans WHERE replicate_of IS NOT NULL),
measured AS (  -- the metric that a paper names, else the task's main one
    SELECT NULL AS named, model, calibration, selector, removed, repair, healing, task, metric, value, stderr, n_samples
    FROM scores ANTI JOIN draws USING (model, selector)
    UNION ALL
    SELECT metric AS named, model, calibration, selector, removed, repair, healing, task, metric, value, stderr, n_samples
    FROM against_base ANTI JOIN draws USING (model, selector)
    WHERE part_of IS NULL
    UNION ALL
    SELECT NULL AS named, model, calibration, selector, removed, repair, healing, task, metric, value,
        root(stderr ** 2 + coalesce(spread ** 2 / n_selectors, 0)) AS stderr, n_samples
    FROM score_means WHERE n_selectors > 1
),
compared AS (
    SELECT p.paper, p."table", p.of, s.model,
        if(p.calibration = 'own' AND p.task NOT LIKE '% %', p.task, p.calibration) AS calibration, s.selector, s.removed, s.repair,
        s.healing, p.task, string_agg(DISTINCT s.metric, ', ') AS metric, p.published, avg(s.value) AS ours,
        mean_stderr(s.value, s.stderr) AS stderr, sum(s.n_samples)::BIGINT AS n_samples
    FROM asked AS p
    JOIN models AS m USING (source)
    JOIN measured AS s ON s.model = m.model AND s.task = p.each AND s.selector = p.selector AND s.removed = p.removed
        AND s.repair = p.repair AND s.healing = p.healing AND s.named IS NOT DISTINCT FROM p.metric
        AND s.calibration = if(p.calibration = 'own', p.each, p.calibration)
    GROUP BY ALL
    HAVING count(*) = len(string_split(p.task, ' '))
)
SELECT "table", calibration, selector, removed, repair, published, round(ours, 4) AS ours,
    abs(ours - published) <= 2 * stderr AS within, healing, task, of, metric, stderr, n_samples,
    ours - published AS difference, model, paper
FROM compared
ORDER BY paper, "table", of, model, removed, calibration, selector, repair, healing, task;
