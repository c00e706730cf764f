-- How does the error at a boundary spread over channels, with and without a repair?
--
--   duckdb results/lamina.duckdb -f sql/queries/how_errors_spread_over_channels.sql
--
-- One row per repaired run of removed layers and group of channels. Channels are ordered by their
-- error without repair, the largest first, and divided into up to 128 groups of equal size
-- [arXiv 2605.15491, figures 1 and 4].
-- channel_group            number of the group, from 1 to n_groups, with n_channels channels
-- mae_before, mae_after    mean absolute error of these channels without and with the repair, in
--                          units of the activations, on n_heldout held-out documents
-- run_mae_before, run_mae_after   the same over all channels
-- error_before, error      relative error of the run, with its standard error
-- n_repairs                number of repairs of the same run
-- Empty where no repair was fitted.
WITH runs AS (
    SELECT *, count(*) OVER (PARTITION BY model, calibration, selector, removed, boundary) AS n_repairs
    FROM patches WHERE channel_mae_before IS NOT NULL AND channel_mae_after IS NOT NULL
),
channels AS (
    SELECT model, calibration, selector, removed, repair, boundary, least(128, len(channel_mae_before)) AS n_groups,
        unnest(channel_mae_before) AS mae_before, unnest(channel_mae_after) AS mae_after,
        unnest(range(len(channel_mae_before))) AS channel
    FROM runs
),
placed AS (
    SELECT *, row_number() OVER run AS place, count(*) OVER (
        PARTITION BY model, calibration, selector, removed, repair, boundary) AS n
    FROM channels
    WINDOW run AS (PARTITION BY model, calibration, selector, removed, repair, boundary ORDER BY mae_before DESC, channel)
),
grouped AS (
    SELECT model, calibration, selector, removed, repair, boundary, n_groups,
        1 + ((place - 1) * n_groups // n) AS channel_group, count(*) AS n_channels,
        avg(mae_before) AS mae_before, avg(mae_after) AS mae_after
    FROM placed GROUP BY ALL
)
SELECT g.model, g.calibration, g.selector, g.removed, g.boundary, r.start, r."end", g.repair, n_repairs,
    channel_group, n_groups, n_channels, g.mae_before, g.mae_after, r.mae_before AS run_mae_before,
    r.mae_after AS run_mae_after, heldout_error_before AS error_before,
    heldout_error_before_stderr AS error_before_stderr, heldout_error AS error, heldout_error_stderr AS error_stderr,
    n_heldout
FROM grouped AS g JOIN runs AS r USING (model, calibration, selector, removed, repair, boundary)
ORDER BY g.model, g.calibration, g.selector, g.removed, r.start, g.repair, channel_group;
