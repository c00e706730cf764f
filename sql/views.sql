-- The tables of a run as views over results/tables/*.parquet, with the data dictionary as comments, then a few views
-- derived from them. Paths are relative: open DuckDB in the project's root.
--
--   duckdb -init sql/views.sql                          a shell with every view
--   duckdb results/lamina.duckdb                        the same, as the pipeline leaves it
--   PYTHONPATH=src python -m lamina.database FILE.sql   the answer of a query, without the duckdb shell
--   SELECT * FROM duckdb_columns() WHERE NOT internal;  the data dictionary
--
-- A variant is spelled out in six columns: model, calibration, selector, removed, recovery, healing. The base model has
-- removed = 0 and 'none' in the others. Layers keep the numbers they have in the base model.

CREATE OR REPLACE VIEW models AS SELECT * FROM 'results/tables/models.parquet';
COMMENT ON VIEW models IS 'One row per model: what was loaded, and how large it is.';
COMMENT ON COLUMN models.model IS 'Name of the model in the configuration.';
COMMENT ON COLUMN models.family IS 'Architecture family (model_type of transformers).';
COMMENT ON COLUMN models.n_layers IS 'Number of decoder layers, L.';
COMMENT ON COLUMN models.hidden_size IS 'Width of the residual stream, C, in channels.';
COMMENT ON COLUMN models.vocabulary IS 'Number of token ids.';
COMMENT ON COLUMN models.parameters IS 'Number of parameters.';
COMMENT ON COLUMN models.weights_bytes IS 'Size of the weights in the loaded dtype, in bytes.';
COMMENT ON COLUMN models.dtype IS 'Floating point type of the weights as loaded.';
COMMENT ON COLUMN models.source IS 'Local folder or hub id.';
COMMENT ON COLUMN models.revision IS 'Revision of a hub model; null for a local folder.';
COMMENT ON COLUMN models.weights_sha256 IS 'SHA-256 over the weight files: which weights, exactly.';

CREATE OR REPLACE VIEW calibrations AS SELECT * FROM 'results/tables/calibrations.parquet';
COMMENT ON VIEW calibrations IS 'One row per model and calibration: the samples on which units are scored and patches fitted. Never test data.';
COMMENT ON COLUMN calibrations.model IS 'Name of the model, whose tokenizer made the samples.';
COMMENT ON COLUMN calibrations.calibration IS 'Name of the calibration in the configuration.';
COMMENT ON COLUMN calibrations.kind IS 'choices (multiple choice), generated (answer under teacher forcing) or text.';
COMMENT ON COLUMN calibrations.n_samples IS 'Number of samples.';
COMMENT ON COLUMN calibrations.n_tokens IS 'Number of real tokens over all rows of the samples.';
COMMENT ON COLUMN calibrations.chance_accuracy IS 'Accuracy of guessing, 0 to 1: mean of 1 / number of choices; 1 / vocabulary for text; 0 for generated answers.';
COMMENT ON COLUMN calibrations.source IS 'lm-eval task (several: comma-separated), text or file the samples come from.';
COMMENT ON COLUMN calibrations.split IS 'Split of the source that was sampled.';
COMMENT ON COLUMN calibrations.seed IS 'Seed of the sampling.';

CREATE OR REPLACE VIEW activations AS SELECT * FROM 'results/tables/activations.parquet';
COMMENT ON VIEW activations IS 'One row per model, calibration and pair of boundaries: the residual stream entering layer `layer` of the base model against the one entering layer + span.';
COMMENT ON COLUMN activations.model IS 'Name of the model.';
COMMENT ON COLUMN activations.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN activations.layer IS 'First boundary, 0 to L - 1: the stream entering this layer.';
COMMENT ON COLUMN activations.span IS 'Number of layers between the two boundaries, 1 to L - layer; 0 holds the boundary itself.';
COMMENT ON COLUMN activations.cosine IS 'Mean over samples of the mean over tokens of 1 - cos, 0 (same direction) to 2.';
COMMENT ON COLUMN activations.cosine_stderr IS 'Standard error of cosine over samples.';
COMMENT ON COLUMN activations.angular_last IS 'Angle at the last real token divided by pi, 0 (same direction) to 1 (opposite).';
COMMENT ON COLUMN activations.angular_last_stderr IS 'Standard error of angular_last over samples.';
COMMENT ON COLUMN activations.l2_relative IS 'Euclidean distance of the two streams relative to the norm of the first, 0 upwards.';
COMMENT ON COLUMN activations.norm IS 'Mean Euclidean norm of the stream entering `layer`.';
COMMENT ON COLUMN activations.channel_magnitude IS 'Mean absolute value of each of the C channels of the stream; null where not recorded.';
COMMENT ON COLUMN activations.n_samples IS 'Number of samples.';
COMMENT ON COLUMN activations.n_tokens IS 'Number of real tokens; padding is never counted.';

CREATE OR REPLACE VIEW sweeps AS SELECT * FROM 'results/tables/sweeps.parquet';
COMMENT ON VIEW sweeps IS 'One row per sample and removed unit: what the model does on a calibration sample when one more unit is skipped. Unit none is the model before that removal.';
COMMENT ON COLUMN sweeps.model IS 'Name of the model.';
COMMENT ON COLUMN sweeps.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN sweeps.selector IS 'Selector whose plan was applied before; base for the unpruned model, whose sweep is shared.';
COMMENT ON COLUMN sweeps.removed IS 'Number of units already removed before this sweep.';
COMMENT ON COLUMN sweeps.unit IS 'Unit skipped: 12, 12.attention or 12.mlp; none for nothing skipped.';
COMMENT ON COLUMN sweeps.sample IS 'Index of the sample in the calibration, from 0.';
COMMENT ON COLUMN sweeps.correct IS 'Whether the gold answer had the highest log-likelihood; generated: every gold token was the argmax.';
COMMENT ON COLUMN sweeps.correct_norm IS 'The same with log-likelihoods divided by the length of the choice (acc_norm).';
COMMENT ON COLUMN sweeps.nll IS 'Negative log-likelihood of the gold answer, summed over its tokens, in nats.';
COMMENT ON COLUMN sweeps.n_tokens IS 'Number of scored tokens.';
COMMENT ON COLUMN sweeps.gold_margin IS 'Log-likelihood of the gold answer minus that of the best other choice, in nats; positive where correct.';
COMMENT ON COLUMN sweeps.output_cosine IS '1 - cos of the logits against those of the base model at the scored positions.';
COMMENT ON COLUMN sweeps.output_norm IS 'Euclidean distance of the logits from those of the base model.';
COMMENT ON COLUMN sweeps.output_js IS 'Jensen-Shannon divergence of the next-token distributions from the base model, in nats, 0 to ln 2.';
COMMENT ON COLUMN sweeps.output_kl IS 'KL(base || without the unit) of the next-token distributions, in nats.';
COMMENT ON COLUMN sweeps.cosine IS 'Mean over tokens of 1 - cos between the stream before and after the unit, 0 to 2.';
COMMENT ON COLUMN sweeps.angular_last IS 'Angle between the stream before and after the unit at the last real token, divided by pi, 0 to 1.';
COMMENT ON COLUMN sweeps.taylor IS 'Share of the sample in the sum over the unit''s weights w of abs(w * gradient), the gradient being the calibration''s mean.';
COMMENT ON COLUMN sweeps.magnitude IS 'Sum of abs(w) over the weights of the unit; the same for every sample.';

CREATE OR REPLACE VIEW relevance AS SELECT * FROM 'results/tables/relevance.parquet';
COMMENT ON VIEW relevance IS 'One row per metric and unit: relevance of the unit on a calibration, high = relevant, with a 95 % interval.';
COMMENT ON COLUMN relevance.model IS 'Name of the model.';
COMMENT ON COLUMN relevance.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN relevance.selector IS 'Selector whose plan was applied before; base for the unpruned model.';
COMMENT ON COLUMN relevance.removed IS 'Number of units already removed when the unit was scored.';
COMMENT ON COLUMN relevance.metric IS 'Metric: accuracy (1 = all above chance lost, 0 = none, negative = better without), cosine, angular, perplexity, output_*, taylor, magnitude, random.';
COMMENT ON COLUMN relevance.unit IS 'Unit: 12, 12.attention or 12.mlp.';
COMMENT ON COLUMN relevance.layer IS 'Layer of the unit, 0 to L - 1, numbered in the base model.';
COMMENT ON COLUMN relevance.component IS 'Kind of unit: layer, attention or mlp.';
COMMENT ON COLUMN relevance.score IS 'Relevance in the unit of the metric; null where undefined (see reason).';
COMMENT ON COLUMN relevance.ci_low IS 'Lower end of the 95 % interval of score (bootstrap over samples).';
COMMENT ON COLUMN relevance.ci_high IS 'Upper end of the 95 % interval of score.';
COMMENT ON COLUMN relevance.n_samples IS 'Number of samples behind score: fewer than the calibration has where a budget let the unit leave early; 0 for metrics that look at weights only.';
COMMENT ON COLUMN relevance.rank IS 'Place of the unit in the ranking of its sweep; the unit that goes first has the lowest. Units that left early come after those that saw more samples.';
COMMENT ON COLUMN relevance.reason IS 'Why score is null, or why the ranking fell back to something else; null in the ordinary case.';

CREATE OR REPLACE VIEW plans AS SELECT * FROM 'results/tables/plans.parquet';
COMMENT ON VIEW plans IS 'One row per plan and unit: what a selector removes at a size, in order. A refused plan has one row with a null unit.';
COMMENT ON COLUMN plans.model IS 'Name of the model.';
COMMENT ON COLUMN plans.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN plans.selector IS 'Name of the selector.';
COMMENT ON COLUMN plans.removed IS 'Size of the plan: number of units it removes.';
COMMENT ON COLUMN plans.unit IS 'Unit removed: 12, 12.attention or 12.mlp; null for a refused plan.';
COMMENT ON COLUMN plans.position IS 'Place in the order of removal, from 1.';
COMMENT ON COLUMN plans.score IS 'Score for which the unit was picked, in the unit of the metric; null where the strategy has none.';
COMMENT ON COLUMN plans.accuracy_before IS 'Accuracy on the calibration before the unit went, 0 to 1; null where not measured.';
COMMENT ON COLUMN plans.accuracy_after IS 'Accuracy on the calibration after the unit went, 0 to 1; null where not measured.';
COMMENT ON COLUMN plans.refused IS 'Why there is no plan, and the remedy; null for a plan.';

CREATE OR REPLACE VIEW patches AS SELECT * FROM 'results/tables/patches.parquet';
COMMENT ON VIEW patches IS 'One row per variant and boundary: how well a training-free recovery was fitted. Errors are relative to the norm of the target unless a name says mae.';
COMMENT ON COLUMN patches.model IS 'Name of the model.';
COMMENT ON COLUMN patches.calibration IS 'Name of the calibration the patch was fitted on.';
COMMENT ON COLUMN patches.selector IS 'Name of the selector.';
COMMENT ON COLUMN patches.removed IS 'Size of the plan.';
COMMENT ON COLUMN patches.recovery IS 'Name of the recovery.';
COMMENT ON COLUMN patches.healing IS 'Always none: patches are fitted before healing.';
COMMENT ON COLUMN patches.boundary IS 'The removed run as start-end in base numbering: layers start to end - 1 are gone.';
COMMENT ON COLUMN patches.start IS 'First removed layer of the run; the patch acts on the stream entering it.';
COMMENT ON COLUMN patches."end" IS 'First layer after the run.';
COMMENT ON COLUMN patches.ridge IS 'Regularisation strength chosen, relative to the mean eigenvalue of the Gram matrix.';
COMMENT ON COLUMN patches.ridge_at_edge IS 'Whether the choice fell on an edge of the grid, so that a better one may lie outside.';
COMMENT ON COLUMN patches.rank IS 'Rank of the operator; null for full rank.';
COMMENT ON COLUMN patches.fit_error_before IS 'Relative error at the boundary without the patch, on the samples it was fitted on.';
COMMENT ON COLUMN patches.fit_error IS 'Relative error with the patch, on the samples it was fitted on.';
COMMENT ON COLUMN patches.heldout_error_before IS 'Relative error without the patch, on held-out calibration samples.';
COMMENT ON COLUMN patches.heldout_error IS 'Relative error with the patch, on held-out calibration samples.';
COMMENT ON COLUMN patches.mae_before IS 'Mean absolute error at the boundary without the patch, in activation units, held-out samples.';
COMMENT ON COLUMN patches.mae_after IS 'Mean absolute error with the patch, in activation units, held-out samples.';
COMMENT ON COLUMN patches.channel_mae_before IS 'mae_before of each of the C channels.';
COMMENT ON COLUMN patches.channel_mae_after IS 'mae_after of each of the C channels.';
COMMENT ON COLUMN patches.antisymmetric_share IS 'Share of the squared Frobenius norm of M in (M - M^T) / 2, 0 to 1: what no symmetric patch can reach.';
COMMENT ON COLUMN patches.parameters IS 'Number of parameters the patch adds.';
COMMENT ON COLUMN patches.n_samples IS 'Number of samples the patch was fitted on.';
COMMENT ON COLUMN patches.n_tokens IS 'Number of real tokens the patch was fitted on.';

CREATE OR REPLACE VIEW training AS SELECT * FROM 'results/tables/training.parquet';
COMMENT ON VIEW training IS 'One row per variant and logged step of its healing.';
COMMENT ON COLUMN training.model IS 'Name of the model.';
COMMENT ON COLUMN training.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN training.selector IS 'Name of the selector.';
COMMENT ON COLUMN training.removed IS 'Size of the plan.';
COMMENT ON COLUMN training.recovery IS 'Name of the recovery applied before healing.';
COMMENT ON COLUMN training.healing IS 'Name of the healing.';
COMMENT ON COLUMN training.step IS 'Optimiser step, from 0.';
COMMENT ON COLUMN training.epoch IS 'Pass over the training data, from 0.';
COMMENT ON COLUMN training.loss IS 'Training loss of the step, in nats per token; null on rows that only validate.';
COMMENT ON COLUMN training.validation_loss IS 'Loss on the validation samples, in nats per token; null on steps without validation.';
COMMENT ON COLUMN training.learning_rate IS 'Learning rate of the step.';
COMMENT ON COLUMN training.tokens IS 'Tokens seen so far.';
COMMENT ON COLUMN training.chosen IS 'Whether the weights of this step were kept (lowest validation loss).';

CREATE OR REPLACE VIEW benchmarks AS SELECT * FROM 'results/tables/benchmarks.parquet';
COMMENT ON VIEW benchmarks IS 'One row per variant, task and metric: a number measured on test data.';
COMMENT ON COLUMN benchmarks.model IS 'Name of the model.';
COMMENT ON COLUMN benchmarks.calibration IS 'Name of the calibration; none for the base model.';
COMMENT ON COLUMN benchmarks.selector IS 'Name of the selector; none for the base model.';
COMMENT ON COLUMN benchmarks.removed IS 'Size of the plan; 0 for the base model.';
COMMENT ON COLUMN benchmarks.recovery IS 'Name of the recovery; none without one.';
COMMENT ON COLUMN benchmarks.healing IS 'Name of the healing; none without one.';
COMMENT ON COLUMN benchmarks.task IS 'lm-eval task or perplexity entry.';
COMMENT ON COLUMN benchmarks.metric IS 'acc, acc_norm, exact_match (0 to 1), perplexity (1 upwards), nll (nats per token) or nll_per_log_vocabulary (1 = guessing).';
COMMENT ON COLUMN benchmarks.value IS 'The measured number.';
COMMENT ON COLUMN benchmarks.stderr IS 'Standard error of value, in the same unit.';
COMMENT ON COLUMN benchmarks.n_samples IS 'Number of test documents (windows for perplexity).';
COMMENT ON COLUMN benchmarks.n_shot IS 'Number of examples in the prompt.';
COMMENT ON COLUMN benchmarks.higher_is_better IS 'False for perplexity and nll.';
COMMENT ON COLUMN benchmarks.task_version IS 'Version of the task file.';

CREATE OR REPLACE VIEW benchmark_samples AS SELECT * FROM 'results/tables/benchmark_samples.parquet';
COMMENT ON VIEW benchmark_samples IS 'One row per variant, task, metric and test document, for paired comparisons of variants.';
COMMENT ON COLUMN benchmark_samples.model IS 'Name of the model.';
COMMENT ON COLUMN benchmark_samples.calibration IS 'Name of the calibration; none for the base model.';
COMMENT ON COLUMN benchmark_samples.selector IS 'Name of the selector; none for the base model.';
COMMENT ON COLUMN benchmark_samples.removed IS 'Size of the plan; 0 for the base model.';
COMMENT ON COLUMN benchmark_samples.recovery IS 'Name of the recovery; none without one.';
COMMENT ON COLUMN benchmark_samples.healing IS 'Name of the healing; none without one.';
COMMENT ON COLUMN benchmark_samples.task IS 'lm-eval task or perplexity entry.';
COMMENT ON COLUMN benchmark_samples.sample IS 'Index of the test document, the same for every variant.';
COMMENT ON COLUMN benchmark_samples.metric IS 'Metric the value belongs to.';
COMMENT ON COLUMN benchmark_samples.value IS 'Value of the document: 1 correct, 0 wrong for accuracies; nats per token for nll.';

CREATE OR REPLACE VIEW efficiency AS SELECT * FROM 'results/tables/efficiency.parquet';
COMMENT ON VIEW efficiency IS 'One row per variant: size, speed and memory, with ratios to the base model measured in the same run.';
COMMENT ON COLUMN efficiency.model IS 'Name of the model.';
COMMENT ON COLUMN efficiency.calibration IS 'Name of the calibration; none for the base model.';
COMMENT ON COLUMN efficiency.selector IS 'Name of the selector; none for the base model.';
COMMENT ON COLUMN efficiency.removed IS 'Size of the plan; 0 for the base model.';
COMMENT ON COLUMN efficiency.recovery IS 'Name of the recovery; none without one.';
COMMENT ON COLUMN efficiency.healing IS 'Name of the healing; none without one.';
COMMENT ON COLUMN efficiency.device IS 'Device the run was timed on.';
COMMENT ON COLUMN efficiency.dtype IS 'Floating point type of the weights.';
COMMENT ON COLUMN efficiency.prompt IS 'Length of the prompt, in tokens.';
COMMENT ON COLUMN efficiency.generate IS 'Number of tokens generated after the prompt.';
COMMENT ON COLUMN efficiency.batch IS 'Number of sequences at once.';
COMMENT ON COLUMN efficiency.repeats IS 'Number of timed repetitions.';
COMMENT ON COLUMN efficiency.parameters IS 'Number of parameters, patch and adapter included.';
COMMENT ON COLUMN efficiency.parameters_ratio IS 'parameters relative to the base model, 0 to about 1.';
COMMENT ON COLUMN efficiency.weights_bytes IS 'Size of the weights, in bytes.';
COMMENT ON COLUMN efficiency.weights_bytes_ratio IS 'weights_bytes relative to the base model.';
COMMENT ON COLUMN efficiency.kv_bytes_per_token IS 'Key-value cache per token and sequence, in bytes.';
COMMENT ON COLUMN efficiency.kv_bytes_per_token_ratio IS 'kv_bytes_per_token relative to the base model.';
COMMENT ON COLUMN efficiency.latency_ms IS 'Time of one request (prompt and generation), in milliseconds.';
COMMENT ON COLUMN efficiency.latency_ratio IS 'latency_ms relative to the base model; below 1 is faster.';
COMMENT ON COLUMN efficiency.latency_ratio_stderr IS 'Standard error of latency_ratio over the repetitions.';
COMMENT ON COLUMN efficiency.tokens_per_second IS 'Generated tokens per second, all sequences of the batch together.';
COMMENT ON COLUMN efficiency.tokens_per_second_ratio IS 'tokens_per_second relative to the base model; above 1 is faster.';
COMMENT ON COLUMN efficiency.tokens_per_second_ratio_stderr IS 'Standard error of tokens_per_second_ratio over the repetitions.';
COMMENT ON COLUMN efficiency.peak_memory_bytes IS 'Peak memory of the device during the run, in bytes; null where the device does not report it.';
COMMENT ON COLUMN efficiency.peak_memory_ratio IS 'peak_memory_bytes relative to the base model.';

CREATE OR REPLACE VIEW jobs AS SELECT * FROM 'results/tables/jobs.parquet';
COMMENT ON VIEW jobs IS 'One row per job of the workflow that Snakemake timed.';
COMMENT ON COLUMN jobs.rule IS 'Name of the rule.';
COMMENT ON COLUMN jobs.wildcards IS 'Wildcards of the job as name=value, comma-separated.';
COMMENT ON COLUMN jobs.seconds IS 'Wall time, in seconds.';
COMMENT ON COLUMN jobs.cpu_seconds IS 'CPU time of the job and its children, in seconds; null for jobs too short to sample.';
COMMENT ON COLUMN jobs.max_rss_mb IS 'Largest resident memory, in MB; null for jobs too short to sample.';
COMMENT ON COLUMN jobs.device IS 'gpu where the job asked for one, else cpu.';

-- Derived views follow.

CREATE OR REPLACE VIEW own_tasks AS
WITH sources AS (
    SELECT model, calibration, kind, chance_accuracy, string_split(source, ',') AS names FROM calibrations
),
chances AS (  -- chance is known for a task when some calibration draws on it alone
    SELECT model, task, max(chance_accuracy) AS chance
    FROM (SELECT model, unnest([names[1], calibration]) AS task, chance_accuracy FROM sources
        WHERE len(names) = 1 AND kind <> 'text')
    GROUP BY ALL
),
measured AS (SELECT DISTINCT model, task, metric = 'perplexity' AS is_text FROM benchmarks)
SELECT s.model, s.calibration, m.task, any_value(c.chance) AS chance
FROM sources AS s
JOIN measured AS m ON m.model = s.model AND (
    list_contains(list_transform(s.names, lambda name: trim(name)), m.task)
    OR m.task = s.calibration
    OR (s.kind = 'text' AND m.is_text)
)
LEFT JOIN chances AS c ON c.model = s.model AND c.task = m.task
GROUP BY ALL;
COMMENT ON VIEW own_tasks IS 'Which benchmark tasks are a calibration''s own: those it was sampled from, or of its name; for text, every perplexity.';
COMMENT ON COLUMN own_tasks.model IS 'Name of the model.';
COMMENT ON COLUMN own_tasks.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN own_tasks.task IS 'Benchmark task that measures what the calibration was made for.';
COMMENT ON COLUMN own_tasks.chance IS 'Accuracy of guessing on the calibration samples, 0 to 1; null for perplexity or where unknown.';

CREATE OR REPLACE VIEW paired_differences AS
SELECT
    v.model, v.calibration, v.selector, v.removed, v.recovery, v.healing, v.task, v.metric,
    avg(v.value - b.value) AS difference,
    stddev_samp(v.value - b.value) / sqrt(count(*)) AS stderr,
    count(*) FILTER (v.value > b.value) AS higher,
    count(*) FILTER (v.value < b.value) AS lower,
    count(*) AS n_samples
FROM benchmark_samples AS v
JOIN benchmark_samples AS b USING (model, task, metric, sample)
WHERE v.removed > 0 AND b.removed = 0 AND v.metric <> 'perplexity'
GROUP BY ALL;
COMMENT ON VIEW paired_differences IS 'One row per variant and task: difference to the base model over the same test documents.';
COMMENT ON COLUMN paired_differences.model IS 'Name of the model.';
COMMENT ON COLUMN paired_differences.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN paired_differences.selector IS 'Name of the selector.';
COMMENT ON COLUMN paired_differences.removed IS 'Size of the plan.';
COMMENT ON COLUMN paired_differences.recovery IS 'Name of the recovery.';
COMMENT ON COLUMN paired_differences.healing IS 'Name of the healing.';
COMMENT ON COLUMN paired_differences.task IS 'Benchmark task.';
COMMENT ON COLUMN paired_differences.metric IS 'Metric of the documents'' values.';
COMMENT ON COLUMN paired_differences.difference IS 'Mean of variant minus base: -1 to 1 for accuracies, nats per token for nll.';
COMMENT ON COLUMN paired_differences.stderr IS 'Standard error of difference: standard deviation of the differences / sqrt(n_samples).';
COMMENT ON COLUMN paired_differences.higher IS 'Documents on which the variant has the higher value.';
COMMENT ON COLUMN paired_differences.lower IS 'Documents on which the variant has the lower value.';
COMMENT ON COLUMN paired_differences.n_samples IS 'Number of documents both were tested on.';

CREATE OR REPLACE VIEW scores AS
WITH chosen AS (
    SELECT model, task,
        arg_min(metric, coalesce(list_position(['acc_norm', 'acc', 'exact_match', 'perplexity'], metric), 99)) AS metric
    FROM benchmarks GROUP BY ALL
),
main AS (SELECT b.* FROM benchmarks AS b JOIN chosen USING (model, task, metric)),
base AS (SELECT model, task, value AS base_value, stderr AS base_stderr FROM main WHERE removed = 0),
joined AS (
    SELECT
        m.*, base_value, base_stderr, m.value - base_value AS change,
        CASE
            WHEN m.removed = 0 THEN m.stderr ** 2
            WHEN p.stderr IS NULL THEN 0
            -- perplexity = exp(nll): its documents are paired by their nll, errors relative to the value
            WHEN m.metric = 'perplexity' THEN
                m.value * base_value * ((m.stderr / m.value) ** 2 + (base_stderr / base_value) ** 2 - p.stderr ** 2) / 2
            ELSE (m.stderr ** 2 + base_stderr ** 2 - p.stderr ** 2) / 2
        END AS covariance,
        p.stderr IS NOT NULL AS paired,
        o.task IS NOT NULL AS own,
        (SELECT max(chance) FROM own_tasks AS c WHERE c.model = m.model AND c.task = m.task) AS chance
    FROM main AS m
    LEFT JOIN base ON base.model = m.model AND base.task = m.task
    LEFT JOIN paired_differences AS p ON p.model = m.model AND p.calibration = m.calibration
        AND p.selector = m.selector AND p.removed = m.removed AND p.recovery = m.recovery AND p.healing = m.healing
        AND p.task = m.task AND p.metric = if(m.metric = 'perplexity', 'nll', m.metric)
    LEFT JOIN own_tasks AS o ON o.model = m.model AND o.calibration = m.calibration AND o.task = m.task
),
fractions AS (
    SELECT *,
        CASE WHEN higher_is_better THEN value ELSE base_value END AS upper,
        CASE WHEN higher_is_better THEN base_value ELSE value END AS lower,
        CASE WHEN higher_is_better THEN stderr ELSE base_stderr END AS upper_stderr,
        CASE WHEN higher_is_better THEN base_stderr ELSE stderr END AS lower_stderr,
        sqrt(greatest(0, stderr ** 2 + base_stderr ** 2 - 2 * covariance)) AS change_stderr
    FROM joined
)
SELECT
    model, calibration, selector, removed, recovery, healing, task, metric, value, stderr, n_samples, higher_is_better,
    own, chance, base_value, base_stderr, change, change_stderr, paired,
    upper / nullif(lower, 0) AS kept,
    sqrt(greatest(0, upper_stderr ** 2 + (upper / nullif(lower, 0)) ** 2 * lower_stderr ** 2
        - 2 * (upper / nullif(lower, 0)) * covariance)) / nullif(lower, 0) AS kept_stderr,
    CASE WHEN higher_is_better AND base_value > chance THEN (value - chance) / (base_value - chance) END
        AS kept_above_chance
FROM fractions;
COMMENT ON VIEW scores IS 'One row per variant and task in the task''s main metric (acc_norm, else acc, exact_match, perplexity), against the base model.';
COMMENT ON COLUMN scores.model IS 'Name of the model.';
COMMENT ON COLUMN scores.calibration IS 'Name of the calibration; none for the base model.';
COMMENT ON COLUMN scores.selector IS 'Name of the selector; none for the base model.';
COMMENT ON COLUMN scores.removed IS 'Size of the plan; 0 for the base model.';
COMMENT ON COLUMN scores.recovery IS 'Name of the recovery; none without one.';
COMMENT ON COLUMN scores.healing IS 'Name of the healing; none without one.';
COMMENT ON COLUMN scores.task IS 'Benchmark task or perplexity entry.';
COMMENT ON COLUMN scores.metric IS 'Main metric of the task.';
COMMENT ON COLUMN scores.value IS 'The measured number.';
COMMENT ON COLUMN scores.stderr IS 'Standard error of value.';
COMMENT ON COLUMN scores.n_samples IS 'Number of test documents.';
COMMENT ON COLUMN scores.higher_is_better IS 'False for perplexity and nll.';
COMMENT ON COLUMN scores.own IS 'Whether the task is the calibration''s own (see own_tasks).';
COMMENT ON COLUMN scores.chance IS 'Accuracy of guessing on the task, where known, 0 to 1.';
COMMENT ON COLUMN scores.base_value IS 'The base model''s number on the task.';
COMMENT ON COLUMN scores.base_stderr IS 'Standard error of base_value.';
COMMENT ON COLUMN scores.change IS 'value - base_value, in the unit of the metric.';
COMMENT ON COLUMN scores.change_stderr IS 'Standard error of change, paired over documents (windows of equal weight for perplexity) where they are known.';
COMMENT ON COLUMN scores.paired IS 'Whether change_stderr is paired; otherwise the two errors are added as if independent.';
COMMENT ON COLUMN scores.kept IS 'Share of the base model''s number that is left: value / base (base / value for perplexity); 1 = all.';
COMMENT ON COLUMN scores.kept_stderr IS 'Standard error of kept, by the delta method, with the covariance where change_stderr is paired.';
COMMENT ON COLUMN scores.kept_above_chance IS 'The same counted from chance: (value - chance) / (base - chance); null where chance is unknown or base is not above it.';

CREATE OR REPLACE VIEW repairs AS
WITH paired AS (  -- perplexity = exp(nll): its documents are paired by their nll
    SELECT v.model, v.calibration, v.selector, v.removed, v.recovery, v.healing, v.task,
        if(v.metric = 'nll', 'perplexity', v.metric) AS metric,
        stddev_samp(v.value - p.value) / sqrt(count(*)) AS stderr
    FROM benchmark_samples AS v
    JOIN benchmark_samples AS p USING (model, calibration, selector, removed, task, metric, sample)
    WHERE v.removed > 0 AND p.recovery = 'none' AND p.healing = 'none' AND v.metric <> 'perplexity'
        AND NOT (v.recovery = 'none' AND v.healing = 'none')
    GROUP BY ALL
)
SELECT
    v.model, v.calibration, v.selector, v.removed, v.recovery, v.healing, v.task, v.metric, v.own,
    v.base_value, p.value AS pruned_value, v.value, v.stderr,
    CASE WHEN v.higher_is_better THEN v.value - p.value ELSE p.value - v.value END AS gain,
    CASE
        WHEN s.stderr IS NULL THEN sqrt(v.stderr ** 2 + p.stderr ** 2)
        WHEN v.metric = 'perplexity' THEN sqrt(greatest(0, v.stderr ** 2 + p.stderr ** 2
            - v.value * p.value * ((v.stderr / v.value) ** 2 + (p.stderr / p.value) ** 2 - s.stderr ** 2)))
        ELSE s.stderr
    END AS gain_stderr,
    CASE WHEN v.higher_is_better THEN v.base_value - p.value ELSE p.value - v.base_value END AS loss,
    p.change_stderr AS loss_stderr,
    v.n_samples
FROM scores AS v
JOIN scores AS p USING (model, calibration, selector, removed, task, metric)
LEFT JOIN paired AS s ON s.model = v.model AND s.calibration = v.calibration AND s.selector = v.selector
    AND s.removed = v.removed AND s.recovery = v.recovery AND s.healing = v.healing AND s.task = v.task
    AND s.metric = v.metric
WHERE v.removed > 0 AND p.recovery = 'none' AND p.healing = 'none' AND NOT (v.recovery = 'none' AND v.healing = 'none');
COMMENT ON VIEW repairs IS 'One row per repaired variant and task: what recovery and healing gave back against the same plan without repair.';
COMMENT ON COLUMN repairs.model IS 'Name of the model.';
COMMENT ON COLUMN repairs.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN repairs.selector IS 'Name of the selector.';
COMMENT ON COLUMN repairs.removed IS 'Size of the plan.';
COMMENT ON COLUMN repairs.recovery IS 'Name of the recovery; none for healing alone.';
COMMENT ON COLUMN repairs.healing IS 'Name of the healing; none for recovery alone.';
COMMENT ON COLUMN repairs.task IS 'Benchmark task.';
COMMENT ON COLUMN repairs.metric IS 'Main metric of the task.';
COMMENT ON COLUMN repairs.own IS 'Whether the task is the calibration''s own.';
COMMENT ON COLUMN repairs.base_value IS 'The base model''s number.';
COMMENT ON COLUMN repairs.pruned_value IS 'The number after pruning, before repair.';
COMMENT ON COLUMN repairs.value IS 'The number after repair.';
COMMENT ON COLUMN repairs.stderr IS 'Standard error of value.';
COMMENT ON COLUMN repairs.gain IS 'What repair gave back, in the unit of the metric; positive = better.';
COMMENT ON COLUMN repairs.gain_stderr IS 'Standard error of gain, paired over documents where they are known.';
COMMENT ON COLUMN repairs.loss IS 'What pruning had cost against the base model; positive = worse.';
COMMENT ON COLUMN repairs.loss_stderr IS 'Standard error of loss.';
COMMENT ON COLUMN repairs.n_samples IS 'Number of test documents.';

CREATE OR REPLACE VIEW relevance_wide AS
WITH wide AS (
    SELECT
        model, calibration, component, layer, unit,
        max(score) FILTER (metric = 'accuracy') AS accuracy,
        max(ci_low) FILTER (metric = 'accuracy') AS accuracy_low,
        max(ci_high) FILTER (metric = 'accuracy') AS accuracy_high,
        max(n_samples) FILTER (metric = 'accuracy') AS accuracy_samples,
        max(reason) FILTER (metric = 'accuracy') AS accuracy_reason,
        max(score) FILTER (metric = 'cosine') AS cosine,
        max(ci_low) FILTER (metric = 'cosine') AS cosine_low,
        max(ci_high) FILTER (metric = 'cosine') AS cosine_high,
        max(n_samples) FILTER (metric = 'cosine') AS cosine_samples,
        max(score) FILTER (metric = 'angular') AS angular,
        max(score) FILTER (metric = 'perplexity') AS perplexity,
        max(score) FILTER (metric = 'output_cosine') AS output_cosine,
        max(score) FILTER (metric = 'output_norm') AS output_norm,
        max(score) FILTER (metric = 'output_js') AS output_js,
        max(score) FILTER (metric = 'output_kl') AS output_kl,
        max(score) FILTER (metric = 'taylor') AS taylor,
        max(score) FILTER (metric = 'magnitude') AS magnitude
    FROM relevance WHERE selector = 'base' AND removed = 0 GROUP BY ALL
)
SELECT *,
    -- Equals share the mean of their places, which is what Spearman's correlation needs.
    CASE WHEN accuracy IS NOT NULL THEN rank() OVER (
        PARTITION BY model, calibration, component ORDER BY accuracy NULLS LAST)
        + (count(*) OVER (PARTITION BY model, calibration, component, accuracy) - 1) / 2 END AS accuracy_rank,
    CASE WHEN cosine IS NOT NULL THEN rank() OVER (
        PARTITION BY model, calibration, component ORDER BY cosine NULLS LAST)
        + (count(*) OVER (PARTITION BY model, calibration, component, cosine) - 1) / 2 END AS cosine_rank
FROM wide;
COMMENT ON VIEW relevance_wide IS 'One row per unit of the base model and calibration, one column per metric (null where not measured).';
COMMENT ON COLUMN relevance_wide.model IS 'Name of the model.';
COMMENT ON COLUMN relevance_wide.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN relevance_wide.component IS 'Kind of unit: layer, attention or mlp.';
COMMENT ON COLUMN relevance_wide.layer IS 'Layer of the unit, 0 to L - 1.';
COMMENT ON COLUMN relevance_wide.unit IS 'Unit: 12, 12.attention or 12.mlp.';
COMMENT ON COLUMN relevance_wide.accuracy IS 'Accuracy relevance: 1 = all above chance lost, 0 = none lost, negative = better without.';
COMMENT ON COLUMN relevance_wide.accuracy_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.accuracy_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.accuracy_samples IS 'Number of samples behind accuracy.';
COMMENT ON COLUMN relevance_wide.accuracy_reason IS 'Why accuracy is null.';
COMMENT ON COLUMN relevance_wide.cosine IS 'Cosine relevance: mean of 1 - cos over the unit, 0 to 2.';
COMMENT ON COLUMN relevance_wide.cosine_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN relevance_wide.cosine_samples IS 'Number of samples behind cosine.';
COMMENT ON COLUMN relevance_wide.angular IS 'Angular distance over the unit at the last token, divided by pi, 0 to 1.';
COMMENT ON COLUMN relevance_wide.perplexity IS 'Rise of the mean negative log-likelihood without the unit, in nats per token.';
COMMENT ON COLUMN relevance_wide.output_cosine IS '1 - cos of the logits against the base model.';
COMMENT ON COLUMN relevance_wide.output_norm IS 'Euclidean distance of the logits from the base model.';
COMMENT ON COLUMN relevance_wide.output_js IS 'Jensen-Shannon divergence of the outputs, in nats.';
COMMENT ON COLUMN relevance_wide.output_kl IS 'KL divergence of the outputs from the base model, in nats.';
COMMENT ON COLUMN relevance_wide.taylor IS 'Sum over the weights of abs(weight x gradient).';
COMMENT ON COLUMN relevance_wide.magnitude IS 'Sum over the weights of their absolute value.';
COMMENT ON COLUMN relevance_wide.accuracy_rank IS 'Place by accuracy among units of the kind, 1 = least relevant, ties share a place.';
COMMENT ON COLUMN relevance_wide.cosine_rank IS 'Place by cosine among units of the kind, 1 = least relevant, ties share a place.';

CREATE OR REPLACE VIEW removal_order AS
SELECT model, calibration, selector, removed,
    string_agg(unit, ' ' ORDER BY position) AS units,
    arg_min(accuracy_before, position) AS accuracy_before,
    arg_max(accuracy_after, position) AS accuracy_after,
    any_value(refused) AS refused
FROM plans GROUP BY ALL;
COMMENT ON VIEW removal_order IS 'One row per plan: its units in order of removal, in one string.';
COMMENT ON COLUMN removal_order.model IS 'Name of the model.';
COMMENT ON COLUMN removal_order.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN removal_order.selector IS 'Name of the selector.';
COMMENT ON COLUMN removal_order.removed IS 'Size of the plan.';
COMMENT ON COLUMN removal_order.units IS 'Units separated by spaces, first removed first; null for a refused plan.';
COMMENT ON COLUMN removal_order.accuracy_before IS 'Accuracy on the calibration before anything went, 0 to 1.';
COMMENT ON COLUMN removal_order.accuracy_after IS 'Accuracy on the calibration after everything went, 0 to 1.';
COMMENT ON COLUMN removal_order.refused IS 'Why there is no plan, and the remedy.';

CREATE OR REPLACE VIEW variants AS
WITH own AS (
    SELECT model, calibration, selector, removed, recovery, healing,
        string_agg(task, ', ' ORDER BY task) AS own_tasks,
        string_agg(DISTINCT metric, ', ') AS own_metric,
        avg(value) AS own_value, sqrt(sum(stderr ** 2)) / count(*) AS own_stderr, avg(base_value) AS own_base,
        avg(kept) AS own_kept, sqrt(sum(kept_stderr ** 2)) / count(*) AS own_kept_stderr, sum(n_samples) AS own_samples
    FROM scores WHERE own GROUP BY ALL
),
every AS (
    SELECT model, calibration, selector, removed, recovery, healing,
        avg(kept) AS mean_kept, sqrt(sum(kept_stderr ** 2)) / count(*) AS mean_kept_stderr, count(*) AS n_tasks
    FROM scores WHERE higher_is_better GROUP BY ALL
),
texts AS (
    SELECT model, calibration, selector, removed, recovery, healing,
        string_agg(task, ', ' ORDER BY task) AS texts,
        -- of several texts the geometric mean, which is exp of the mean loss
        exp(avg(ln(value))) AS text_perplexity,
        exp(avg(ln(value))) * sqrt(sum((stderr / value) ** 2)) / count(*) AS text_perplexity_stderr,
        exp(avg(ln(base_value))) AS text_base
    FROM scores WHERE metric = 'perplexity' GROUP BY ALL
),
described AS (
    SELECT model, calibration, selector, removed, recovery, healing FROM scores
    UNION SELECT model, calibration, selector, removed, recovery, healing FROM efficiency
)
SELECT d.*, r.units, own_tasks, own_metric, own_value, own_stderr, own_base, own_kept, own_kept_stderr, own_samples,
    mean_kept, mean_kept_stderr, n_tasks, texts, text_perplexity, text_perplexity_stderr, text_base, parameters_ratio, latency_ratio, latency_ratio_stderr, repeats AS latency_repeats
FROM described AS d
LEFT JOIN removal_order AS r USING (model, calibration, selector, removed)
LEFT JOIN own USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN every USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN texts USING (model, calibration, selector, removed, recovery, healing)
LEFT JOIN efficiency USING (model, calibration, selector, removed, recovery, healing);
COMMENT ON VIEW variants IS 'One row per variant: what it lacks, what it keeps of its own task and of all, how large and fast it is.';
COMMENT ON COLUMN variants.model IS 'Name of the model.';
COMMENT ON COLUMN variants.calibration IS 'Name of the calibration; none for the base model.';
COMMENT ON COLUMN variants.selector IS 'Name of the selector; none for the base model.';
COMMENT ON COLUMN variants.removed IS 'Size of the plan; 0 for the base model.';
COMMENT ON COLUMN variants.recovery IS 'Name of the recovery; none without one.';
COMMENT ON COLUMN variants.healing IS 'Name of the healing; none without one.';
COMMENT ON COLUMN variants.units IS 'Removed units, first removed first.';
COMMENT ON COLUMN variants.own_tasks IS 'The calibration''s own benchmark tasks.';
COMMENT ON COLUMN variants.own_metric IS 'Main metric of the own tasks.';
COMMENT ON COLUMN variants.own_value IS 'Mean over the own tasks of the measured number.';
COMMENT ON COLUMN variants.own_stderr IS 'Standard error of own_value.';
COMMENT ON COLUMN variants.own_base IS 'The base model''s number on the same tasks.';
COMMENT ON COLUMN variants.own_kept IS 'Mean over the own tasks of the share kept, 1 = all.';
COMMENT ON COLUMN variants.own_kept_stderr IS 'Standard error of own_kept.';
COMMENT ON COLUMN variants.own_samples IS 'Test documents of the own tasks.';
COMMENT ON COLUMN variants.mean_kept IS 'Mean over all tasks with an accuracy of the share kept, 1 = all.';
COMMENT ON COLUMN variants.mean_kept_stderr IS 'Standard error of mean_kept.';
COMMENT ON COLUMN variants.n_tasks IS 'Number of tasks in mean_kept.';
COMMENT ON COLUMN variants.texts IS 'Perplexity texts the variant was measured on.';
COMMENT ON COLUMN variants.text_perplexity IS 'Perplexity on them; of several texts the geometric mean.';
COMMENT ON COLUMN variants.text_perplexity_stderr IS 'Standard error of text_perplexity.';
COMMENT ON COLUMN variants.text_base IS 'The base model''s perplexity on the same texts.';
COMMENT ON COLUMN variants.parameters_ratio IS 'Parameters relative to the base model.';
COMMENT ON COLUMN variants.latency_ratio IS 'Latency relative to the base model; below 1 is faster.';
COMMENT ON COLUMN variants.latency_ratio_stderr IS 'Standard error of latency_ratio.';
COMMENT ON COLUMN variants.latency_repeats IS 'Number of timed repetitions behind latency_ratio.';

CREATE OR REPLACE VIEW disagreements AS
SELECT model, calibration, component, layer, unit,
    accuracy, accuracy_low, accuracy_high, accuracy_samples, accuracy_rank,
    cosine, cosine_low, cosine_high, cosine_samples, cosine_rank,
    accuracy_rank - cosine_rank AS rank_difference,
    count(*) OVER (PARTITION BY model, calibration, component) AS n_units
FROM relevance_wide WHERE accuracy IS NOT NULL AND cosine IS NOT NULL;
COMMENT ON VIEW disagreements IS 'One row per unit scored by both metrics: how far apart accuracy and cosine place it.';
COMMENT ON COLUMN disagreements.model IS 'Name of the model.';
COMMENT ON COLUMN disagreements.calibration IS 'Name of the calibration.';
COMMENT ON COLUMN disagreements.component IS 'Kind of unit: layer, attention or mlp.';
COMMENT ON COLUMN disagreements.layer IS 'Layer of the unit, 0 to L - 1.';
COMMENT ON COLUMN disagreements.unit IS 'Unit: 12, 12.attention or 12.mlp.';
COMMENT ON COLUMN disagreements.accuracy IS 'Accuracy relevance: 1 = all lost, 0 = none, negative = better without.';
COMMENT ON COLUMN disagreements.accuracy_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN disagreements.accuracy_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN disagreements.accuracy_samples IS 'Number of samples behind accuracy.';
COMMENT ON COLUMN disagreements.accuracy_rank IS 'Place by accuracy, 1 = least relevant.';
COMMENT ON COLUMN disagreements.cosine IS 'Cosine relevance, 0 to 2.';
COMMENT ON COLUMN disagreements.cosine_low IS 'Lower end of its 95 % interval.';
COMMENT ON COLUMN disagreements.cosine_high IS 'Upper end of its 95 % interval.';
COMMENT ON COLUMN disagreements.cosine_samples IS 'Number of samples behind cosine.';
COMMENT ON COLUMN disagreements.cosine_rank IS 'Place by cosine, 1 = least relevant.';
COMMENT ON COLUMN disagreements.rank_difference IS 'accuracy_rank - cosine_rank: positive = accuracy finds the unit more relevant than cosine does.';
COMMENT ON COLUMN disagreements.n_units IS 'Number of units ranked.';
