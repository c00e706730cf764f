-- How do test scores go as healing goes on?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_test_scores_go_as_healing_goes_on.sql
--
-- One row per healed variant, own task and epoch whose weights were tested
-- (`checkpoints` of a healing) [arXiv 2605.14075, figure 21].
-- epoch, step    the epoch, and the optimiser steps up to its end; 0 is the variant before healing
-- tested         the healing whose weights these are; none for epoch 0
-- chosen         whether validation documents chose this epoch: no test document did
-- value          over n_samples test documents, with its standard error
-- base_value     that of the base model
-- Empty where no healing of a study has `checkpoints`.
WITH kept AS (
    SELECT model, calibration, selector, removed, repair, healing, epoch, step FROM training WHERE chosen
),
passes AS (  -- a checkpoint of `lora` is named `lora-2`
    SELECT w.model, w.calibration, w.selector, w.removed, w.repair, w.healing, k.healing AS tested, k.epoch, k.step
    FROM kept AS w JOIN kept AS k USING (model, calibration, selector, removed, repair)
    WHERE k.healing = w.healing || '-' || k.epoch
),
healed AS (SELECT DISTINCT model, calibration, selector, removed, repair, healing FROM passes),
points AS (
    SELECT *, false AS chosen FROM passes
    UNION ALL BY NAME
    SELECT k.*, k.healing AS tested, true AS chosen
    FROM kept AS k JOIN healed USING (model, calibration, selector, removed, repair, healing)
    UNION ALL BY NAME
    SELECT *, 'none' AS tested, 0 AS epoch, 0 AS step, false AS chosen FROM healed
)
SELECT p.model, p.calibration, s.task, s.metric, p.selector, p.removed, p.repair, p.healing, p.epoch, p.step, p.tested,
    p.chosen, s.value, s.stderr, s.n_samples, s.base_value, s.base_stderr
FROM points AS p JOIN scores AS s ON s.model = p.model AND s.calibration = p.calibration AND s.selector = p.selector
    AND s.removed = p.removed AND s.repair = p.repair AND s.healing = p.tested
WHERE s.own
ORDER BY p.model, p.calibration, s.task, p.removed, p.healing, p.selector, p.repair <> 'none', p.repair, p.epoch, p.chosen;
