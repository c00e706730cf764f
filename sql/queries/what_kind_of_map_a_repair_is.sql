-- What kind of linear map is a repair?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_kind_of_map_a_repair_is.sql
--
-- One row per run and repair that is a linear map of the stream, fitted on n_samples samples, once: without errors.
-- singular_values, effective_rank   of the map; the rank is exp of the entropy of their squares as shares
-- antisymmetric_share               share of its squared norm that no symmetric map can reach
-- Empty where no repair that is a linear map of the stream was fitted.
SELECT model, calibration, repair, "start", "end", any_value(singular_values) AS singular_values,
    avg(effective_rank) AS effective_rank, avg(antisymmetric_share) AS antisymmetric_share, max(n_samples) AS n_samples
FROM patches WHERE singular_values IS NOT NULL GROUP BY ALL ORDER BY ALL;
