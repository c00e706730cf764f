"""The tables of what test data and clocks say of variants."""

from lamina.tables.columns import VARIANT_KEYS, Column, Table

BENCHMARKS = Table(
    grain="One row per variant, task and metric: a number measured on test data.",
    columns={
        **VARIANT_KEYS,
        "task": Column("string", "lm-eval task or group of tasks, or perplexity entry."),
        "part_of": Column(
            "string",
            "Group of the configuration that the task, or the group in it, was measured as part "
            "of; null for what the configuration names, which alone goes into means over tasks.",
        ),
        "metric": Column(
            "string",
            "acc, acc_norm, exact_match (0 to 1) or another of the task's, as metric,filter where "
            "it has filters; perplexity (1 upwards), nll (nats per token) and "
            "nll_per_log_vocabulary (1 = guessing) of a text. By `generate`: exact_match,written "
            "(0 to 1; the right choice, written), repetition (share of an answer's n-grams that "
            "it has written before), unstopped (share of answers cut at the longest length) and "
            "length (tokens) of the likeliest answers; pass@k, and sampled_repetition and so on, "
            "of sampled ones.",
        ),
        "value": Column("double", "The measured number; a perplexity that overflows is infinite."),
        "stderr": Column(
            "double",
            "Standard error of value over test documents, in the same unit; null where the task "
            "gives none, or for one document.",
        ),
        "n_samples": Column(
            "int64",
            "Number of test documents, of a group those of its tasks; for perplexity documents "
            "too, those with a token to score, or up to 30 blocks of windows where documents are "
            "joined.",
        ),
        "n_cut": Column(
            "int64",
            "Number of them whose prompt is longer than the model's context and lost its oldest "
            "tokens, as in lm-eval; 0 for perplexity.",
        ),
        "n_undecided": Column(
            "int64",
            "Number of them of which a right choice has the tokens of a wrong one, so that no "
            "score decides them and lm-eval takes the first; 0 for perplexity and generated "
            "answers. Null in tables of earlier versions.",
        ),
        "n_shot": Column(
            "int64",
            "Number of examples in the prompt; 0 for perplexity, null for a group whose tasks "
            "differ.",
        ),
        "higher_is_better": Column(
            "bool",
            "False for perplexity, nll, repetition and unstopped; null where the task does not "
            "say.",
        ),
        "task_version": Column(
            "string",
            "Version of the task file; window of a perplexity, and its stride or what joins it.",
        ),
    },
)

BENCHMARK_SAMPLES = Table(
    grain=(
        "One row per variant, task, metric and test document, for paired comparisons of variants."
    ),
    columns={
        **VARIANT_KEYS,
        "task": Column("string", "lm-eval task or group of tasks, or perplexity entry."),
        "part": Column(
            "string",
            "Task of the group that the document is of; null where the task is none.",
        ),
        "sample": Column("int64", "Index of the test document, the same for every variant."),
        "metric": Column(
            "string",
            "Metric the value belongs to; a perplexity's documents have their nll.",
        ),
        "value": Column(
            "double",
            "Value of the document: 1 correct, 0 wrong for accuracies; nats per scored token for "
            "nll; of sampled answers, over all of them. Of a group that weighs its tasks alike, "
            "multiplied by what makes up for their sizes: the mean is the group's value.",
        ),
    },
)

EFFICIENCY = Table(
    grain=(
        "One row per cost of a variant, prompt and batch: size, speed and memory, with ratios to the base model "
        "measured in turn with it. Of variants that cost the same (same composition, see "
        "removal_order; same repair; same number of runs) one has a row, without its healing, "
        "which is merged into the weights; the view variants gives its numbers to all of them. "
        "Rows of repairs that build the same model but for the numbers in it share one timing. "
        "Of several prompts and batches, view main_timings has the first."
    ),
    columns={
        **VARIANT_KEYS,
        "runs": Column(
            "int64",
            "Runs of removed units: contiguous ones are one. A patch adds one product per run. "
            "Null in tables of earlier versions.",
        ),
        "timed": Column(
            "string",
            "Variant that was timed: that of the row, or one that its repair builds alike. Null "
            "in tables of earlier versions.",
        ),
        "main": Column(
            "bool",
            "Whether prompt and batch are the first ones of the configuration, which all that "
            "names one speed takes. Null in tables of earlier versions, which have one of each.",
        ),
        "device": Column("string", "Device the run was timed on."),
        "dtype": Column("string", "Floating point type of the weights."),
        "prompt": Column("int64", "Length of the prompt, in tokens."),
        "generate": Column("int64", "Number of tokens generated after the prompt."),
        "batch": Column("int64", "Number of sequences at once."),
        "repeats": Column(
            "int64",
            "Number of timed repetitions, each of the base model and of the variant.",
        ),
        "parameters": Column("int64", "Number of parameters, patch included, tied ones once."),
        "parameters_ratio": Column(
            "double",
            "parameters relative to the base model, 0 to about 1.",
        ),
        "weights_bytes": Column("int64", "Size of those parameters in memory, in bytes."),
        "weights_bytes_ratio": Column("double", "weights_bytes relative to the base model."),
        "kv_bytes_per_token": Column("int64", "Key-value cache per token and sequence, in bytes."),
        "kv_bytes_per_token_ratio": Column(
            "double",
            "kv_bytes_per_token relative to the base model.",
        ),
        "latency_ms": Column(
            "double",
            "Time of the prompt alone (prefill, up to the first new token), in milliseconds: the "
            "fastest of a few in each repetition, median over repetitions.",
        ),
        "latency_ratio": Column(
            "double",
            "Time of the prompt relative to the base model's, geometric mean over repetitions; "
            "below 1 is faster.",
        ),
        "latency_ratio_stderr": Column(
            "double",
            "Standard error of latency_ratio over the repetitions: latency_ratio times that of "
            "its mean logarithm. A 95 % interval is Student's t with repeats - 1 times as wide, "
            "about the logarithm. Null for a single repetition.",
        ),
        "tokens_per_second": Column(
            "double",
            "Tokens generated per second after the first, all sequences of the batch together, "
            "median over repetitions; not a number where one token is generated.",
        ),
        "tokens_per_second_ratio": Column(
            "double",
            "tokens_per_second relative to the base model, geometric mean over repetitions; above "
            "1 is faster.",
        ),
        "tokens_per_second_ratio_stderr": Column(
            "double",
            "Standard error of tokens_per_second_ratio over the repetitions, as "
            "latency_ratio_stderr.",
        ),
        "peak_memory_bytes": Column(
            "int64",
            "Weights plus the most GPU memory that a repetition took above what was held before "
            "it, in bytes; null on a CPU.",
        ),
        "peak_memory_ratio": Column(
            "double",
            "peak_memory_bytes relative to the base model; null on a CPU.",
        ),
    },
)
