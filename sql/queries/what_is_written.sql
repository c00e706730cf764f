-- What do models write, as opposed to what they choose?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_is_written.sql
--
-- One row per variant and task with `generate`, the base model first. Variants have only their own
-- tasks.
-- metric, value, stderr     the task's main metric: accuracy of choices, or exact match if the task
--                           has no choices
-- written, written_stderr   exact match of greedy answers to a task with choices
-- pass                      pass@k of sampled answers, each with its 95 % interval
-- repetition, unstopped     of greedy answers: share of repeated n-grams, and share of answers that
--                           do not stop
-- sampled_repetition, sampled_unstopped   the same for sampled answers
-- length                    tokens of greedy answers: an answer that stops at once repeats nothing
-- Empty where no benchmark task has the key `generate`.
WITH found AS (
    SELECT a.model, a.calibration, a.task, a.selector, a.removed, a.repair, a.healing,
        any_value(s.metric) AS metric, any_value(s.value) AS value, any_value(s.stderr) AS stderr,
        max(a.value) FILTER (a.metric = 'exact_match,written') AS written,
        max(a.stderr) FILTER (a.metric = 'exact_match,written') AS written_stderr,
        string_agg(format('{} {:.3f} ± {:.3f}', a.metric, a.value, 1.96 * a.stderr), ', '
            ORDER BY try_cast(regexp_extract(a.metric, '@(\d+)', 1) AS BIGINT)) FILTER (a.metric LIKE 'pass@%') AS pass,
        max(a.value) FILTER (a.metric = 'repetition') AS repetition,
        max(a.value) FILTER (a.metric = 'unstopped') AS unstopped,
        max(a.value) FILTER (a.metric = 'sampled_repetition') AS sampled_repetition,
        max(a.value) FILTER (a.metric = 'sampled_unstopped') AS sampled_unstopped,
        max(a.value) FILTER (a.metric = 'length') AS length,
        any_value(a.n_samples) AS n_samples
    FROM against_base AS a
    JOIN scores AS s USING (model, calibration, selector, removed, repair, healing, task)
    WHERE a.own OR a.selector = 'none'
    GROUP BY ALL HAVING count(*) FILTER (a.metric = 'repetition') > 0
)
FROM found
ORDER BY model, task, selector <> 'none', calibration, selector, removed, healing <> 'none', repair <> 'none', repair, healing;
