-- Which selector wins, at equal size and equal repair?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_selector_wins.sql
--
-- One row per model, size, repair and pair of selectors, over the calibrations' own tasks. Rows with
-- repair `as chosen` compare selectors as intended: each plan has the repair with which its selector
-- chose it. In the other rows both selectors have the same repair.
-- chosen_for, rival_chosen_for  the repair, if any, with which the selector chose its plans of this
--                           size; in rows without repair such plans are bare and not at their best
-- winner                    selector with the significantly better mean over tasks at 5 % (Holm over
--                           the pairs); null if neither is
-- difference                mean over tasks of selector minus rival, on n_samples test documents
--                           that both answered; null where all own tasks are texts
-- ci_low, ci_high           its 95 % interval, for this pair alone
-- p_holm                    p of a paired test of no difference, corrected for all pairs of the size
--                           and repair
-- better, worse, undecided  number of tasks that selector wins and loses at 5 % (Holm over pairs and
--                           tasks), and of the rest
-- n_accuracies, mean_accuracy   number of tasks with an accuracy, and mean of their differences
-- Empty where no two selectors of a study were tested at the same size on the same documents.
WITH tasks AS (
    SELECT model, removed, repair, healing, selector, rival,
        count(*) FILTER (p_holm < 0.05 AND difference > 0) AS better,
        count(*) FILTER (p_holm < 0.05 AND difference < 0) AS worse,
        count(*) FILTER (p_holm >= 0.05) AS undecided,
        count(*) FILTER (metric <> 'nll') AS n_accuracies, avg(difference) FILTER (metric <> 'nll') AS mean_accuracy
    FROM comparisons WHERE task <> 'all' GROUP BY ALL
),
chosen AS (
    SELECT model, selector, removed, string_agg(DISTINCT chosen_repair, ', ' ORDER BY chosen_repair) AS chosen_for
    FROM removal_order WHERE chosen_repair <> 'none' GROUP BY ALL
)
SELECT t.model, t.removed, t.repair, t.healing, t.selector, t.rival,
    CASE WHEN c.p_holm < 0.05 THEN if(c.difference > 0, t.selector, t.rival) END AS winner,
    c.difference, c.ci_low, c.ci_high, c.p_holm, t.better, t.worse, t.undecided, c.n_samples,
    n_accuracies, mean_accuracy, s.chosen_for, o.chosen_for AS rival_chosen_for
FROM tasks AS t
LEFT JOIN (FROM comparisons WHERE task = 'all') AS c USING (model, removed, repair, healing, selector, rival)
LEFT JOIN chosen AS s ON s.model = t.model AND s.removed = t.removed AND s.selector = t.selector
LEFT JOIN chosen AS o ON o.model = t.model AND o.removed = t.removed AND o.selector = t.rival
ORDER BY t.model, t.repair <> 'as chosen', t.healing <> 'none', t.repair <> 'none', t.repair, t.healing,
    t.selector <> 'accuracy', t.selector, t.rival, t.removed;
