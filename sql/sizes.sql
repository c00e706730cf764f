-- How large and how fast variants are. Sizes are counted for all; speed is timed where efficiency was
-- measured.

CREATE OR REPLACE VIEW variant_sizes AS
WITH base AS (
    SELECT model, any_value(m.parameters) AS parameters, any_value(m.weights_bytes) AS weights_bytes,
        any_value(m.head_parameters) + sum(attention_parameters + active_mlp_parameters + other_parameters) AS read_parameters
    FROM models AS m JOIN layer_sizes USING (model) GROUP BY ALL
),
removed_units AS (
    SELECT p.model, p.calibration, p.selector, p.removed, if(contains(unit, '.'), split_part(unit, '.', 2), 'layer') AS part,
        attention_parameters, mlp_parameters, other_parameters, active_mlp_parameters
    FROM plans AS p JOIN layer_sizes AS l ON l.model = p.model AND l.layer = regexp_extract(unit, '^\d+')::BIGINT
    WHERE unit IS NOT NULL AND edit IS NULL
),
saved AS (
    SELECT model, calibration, selector, removed,
        sum(CASE part WHEN 'attention' THEN attention_parameters WHEN 'mlp' THEN mlp_parameters
            ELSE attention_parameters + mlp_parameters + other_parameters END) AS parameters,
        sum(CASE part WHEN 'attention' THEN attention_parameters WHEN 'mlp' THEN active_mlp_parameters
            ELSE attention_parameters + active_mlp_parameters + other_parameters END) AS read_parameters
    FROM removed_units GROUP BY ALL
),
repetitions AS (  -- 7-9x2 runs layers 7 to 9 twice
    SELECT model, calibration, selector, removed, regexp_extract(unit, '^\d+')::BIGINT AS first_layer,
        coalesce(nullif(regexp_extract(unit, '-(\d+)', 1), '')::BIGINT, first_layer) AS last_layer,
        regexp_extract(unit, 'x(\d+)', 1)::BIGINT AS times
    FROM plans WHERE edit = 'repetition'
),
repeated AS (  -- a layer that runs again is read again
    SELECT p.model, p.calibration, p.selector, p.removed,
        sum((times - 1) * (attention_parameters + active_mlp_parameters + other_parameters)) AS read_parameters
    FROM repetitions AS p JOIN layer_sizes AS l ON l.model = p.model AND l.layer BETWEEN first_layer AND last_layer
    GROUP BY ALL
),
added AS (
    SELECT model, calibration, selector, removed, repair, sum(parameters) AS parameters
    FROM patches GROUP BY ALL
),
timed AS (
    SELECT *, coalesce(timed, concat_ws('/', model, calibration, selector, 'removed=' || removed, repair, healing)) AS variant
    FROM main_timings
),
described AS (
    SELECT v.model, v.calibration, v.selector, v.removed, v.repair, v.healing, v.timed,
        coalesce(s.parameters, 0) - coalesce(a.parameters, 0) AS fewer_parameters,
        coalesce(s.read_parameters, 0) - coalesce(r.read_parameters, 0) - coalesce(a.parameters, 0) AS fewer_read
    FROM variants AS v LEFT JOIN saved AS s USING (model, calibration, selector, removed)
    LEFT JOIN repeated AS r USING (model, calibration, selector, removed)
    LEFT JOIN added AS a USING (model, calibration, selector, removed, repair)
)
SELECT d.model, d.calibration, d.selector, d.removed, d.repair, d.healing,
    b.parameters - fewer_parameters AS parameters,
    ((b.parameters - fewer_parameters) / b.parameters * b.weights_bytes)::BIGINT AS weights_bytes,
    b.parameters AS base_parameters, b.weights_bytes AS base_weights_bytes,
    b.read_parameters / (b.read_parameters - fewer_read) AS estimated_speed_ratio,
    t.tokens_per_second, t.tokens_per_second_ratio, t.tokens_per_second_ratio_stderr, t.repeats AS speed_repeats
FROM described AS d JOIN base AS b USING (model)
LEFT JOIN (SELECT model, variant, any_value(COLUMNS(['tokens_per_second', 'tokens_per_second_ratio',
        'tokens_per_second_ratio_stderr', 'repeats'])) FROM timed WHERE isfinite(tokens_per_second) GROUP BY ALL) AS t
    ON t.model = d.model AND t.variant = d.timed;
COMMENT ON VIEW variant_sizes IS 'One row per variant: parameters and bytes, counted from the shapes of layers and patches, and its speed.';
COMMENT ON COLUMN variant_sizes.parameters IS 'Parameters of the variant with its patches; removed sub-layers are left out.';
COMMENT ON COLUMN variant_sizes.weights_bytes IS 'Bytes of these parameters, with the type of the base model.';
COMMENT ON COLUMN variant_sizes.base_parameters IS 'Parameters of the base model.';
COMMENT ON COLUMN variant_sizes.base_weights_bytes IS 'Bytes of the base model.';
COMMENT ON COLUMN variant_sizes.estimated_speed_ratio IS 'Estimate of how many times more tokens it generates in a time than the base model: of the weights that a token reads, those of the base model by those of the variant. The cache is not counted.';
COMMENT ON COLUMN variant_sizes.speed_repeats IS 'Repetitions of the timing; null where efficiency was not measured.';
