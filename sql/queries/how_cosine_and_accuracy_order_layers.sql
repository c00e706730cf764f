-- How do cosine and accuracy order the layers of a task?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_cosine_and_accuracy_order_layers.sql
--
-- One row per layer of the base model scored by both, accuracy on accuracy_samples calibration samples.
-- Empty where no layer was scored both by accuracy and by cosine (or the base model is at chance everywhere).
SELECT model, calibration, layer,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, cosine, cosine_low, cosine_high
FROM disagreements WHERE component = 'layer' ORDER BY model, calibration, layer;
