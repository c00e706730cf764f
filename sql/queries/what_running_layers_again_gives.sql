-- What does it give to run a block of layers again?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_running_layers_again_gives.sql
--
-- One row per search that chose such a block, and block that it tried. All are measured on the
-- n_samples samples that chose.
-- first, last          layers of the block
-- times, is_damped     how often it runs, and whether with damping
-- change, stderr       mean difference of the loss from the base model's, below 0 for a gain
-- n_tried              number of blocks that the search tried: the best of many looks better than
--                      it is
-- held_back_change     the same difference on n_held_back samples that did not choose, with
--                      held_back_stderr; only for the best block of its size
-- Empty where no selector runs layers again.
WITH repeated AS (
    SELECT model, calibration, selector, removed, stage, units[1] AS edit, change, change_stderr AS stderr, n_samples,
        regexp_extract(units[1], '^(\d+)(?:-(\d+))?x(\d+)(~?)$', ['first', 'last', 'times', 'damping']) AS block
    FROM searches
    WHERE len(units) = 1 AND contains(units[1], 'x') AND change IS NOT NULL
),
compared AS (
    SELECT DISTINCT ON (model, calibration, selector, edit) * EXCLUDE (stage)
    FROM repeated WHERE stage NOT IN ('winner', 'held back')
    ORDER BY model, calibration, selector, edit, n_samples DESC
),
ended AS (
    SELECT model, calibration, selector, edit, change AS held_back_change, stderr AS held_back_stderr,
        n_samples AS n_held_back
    FROM repeated WHERE stage = 'held back'
)
SELECT model, calibration, selector, removed, edit, block['first']::INTEGER AS first,
    coalesce(nullif(block['last'], ''), block['first'])::INTEGER AS last, block['times']::INTEGER AS times,
    block['damping'] <> '' AS is_damped, change, stderr, n_samples,
    count(*) OVER (PARTITION BY model, calibration, selector) AS n_tried,
    held_back_change, held_back_stderr, n_held_back
FROM compared LEFT JOIN ended USING (model, calibration, selector, edit)
QUALIFY count(held_back_change) OVER (PARTITION BY model, calibration, selector) > 0
ORDER BY model, calibration, selector, times, is_damped, first, last;
