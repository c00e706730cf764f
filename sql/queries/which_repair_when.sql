-- Which selector and repair give the best model of a size, if general text may suffer so much?
--
--   duckdb results/lamina.duckdb -f sql/queries/which_repair_when.sql
--
-- One row per model, size and allowed perplexity of general text, relative to the base model: the
-- pair with the highest mean accuracy on the calibrations' own tasks. There is no row if no pair is
-- within the limit, or if a looser limit does not change the best pair.
-- accuracy, perplexity   means over n_calibrations, with standard errors over their test documents
-- lead                   accuracy minus that of the next pair within the same limit; 0 if there is
--                        none
-- Empty where no variant was tested both on its calibration's own task and on a text (`perplexity` under benchmarks).
WITH allowed AS (
    SELECT f.*, a.allowance
    FROM frontier AS f, (VALUES (1.1), (1.5), (NULL)) AS a (allowance)
    WHERE a.allowance IS NULL OR f.perplexity <= a.allowance * f.perplexity_base
),
ranked AS (
    SELECT *,
        row_number() OVER best_first AS place,
        accuracy - coalesce(lead(accuracy) OVER best_first, accuracy) AS lead
    FROM allowed
    WINDOW best_first AS (PARTITION BY model, removed, layers, allowance ORDER BY accuracy DESC, perplexity, healing, repair)
)
SELECT model, removed, layers, coalesce(allowance || ' x', 'any') AS general_text, selector, repair, healing,
    accuracy, accuracy_stderr, accuracy_base, lead, perplexity, perplexity_stderr, perplexity_base,
    n_calibrations, n_samples
FROM ranked WHERE place = 1
QUALIFY concat_ws('/', selector, repair, healing) IS DISTINCT FROM lag(concat_ws('/', selector, repair, healing))
    OVER (PARTITION BY model, removed, layers ORDER BY allowance NULLS LAST)
ORDER BY model, removed, layers, allowance NULLS LAST;
