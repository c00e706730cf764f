-- Which tasks need different layers?
--
--   duckdb results/lamina.duckdb -f sql/queries/where_tasks_dissociate.sql
--
-- One row per model, kind of unit and pair of calibrations; double dissociations first.
-- first_more, rival_more     layers that surely matter more to calibration, and to rival (corrected for their number, and
--                            outside the band of random halves of one task)
-- widest, ci_low, ci_high    the largest difference of accuracy relevance of a unit, with its 95 % interval
-- verdict                    double: sure units on both sides; one-sided: on one, which an easier task explains too; none
-- Empty where no study of maps has two calibrations with accuracy above chance.
SELECT model, component, calibration, rival,
    coalesce(string_agg(layer, ' ' ORDER BY layer) FILTER (sure AND difference > 0), '') AS first_more,
    coalesce(string_agg(layer, ' ' ORDER BY layer) FILTER (sure AND difference < 0), '') AS rival_more,
    round(arg_max(difference, abs(difference)), 3) AS widest,
    round(arg_max(ci_low, abs(difference)), 3) AS ci_low, round(arg_max(ci_high, abs(difference)), 3) AS ci_high,
    CASE WHEN first_more <> '' AND rival_more <> '' THEN 'double' WHEN first_more || rival_more <> '' THEN 'one-sided'
        ELSE 'none' END AS verdict,
    count(*) AS n_units, any_value(n_samples) AS n_samples, any_value(n_rival) AS n_rival
FROM dissociations
GROUP BY model, component, calibration, rival
ORDER BY verdict <> 'double', verdict, model, component, calibration, rival;
