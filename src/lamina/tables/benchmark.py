"""The tables of what test data and clocks say of variants."""

from lamina.tables.columns import VARIANT_KEYS, Column, Table

BENCHMARKS = Table(
    grain="One row per variant, task and metric: a number measured on test data.",
    columns={
        **VARIANT_KEYS,
        "task": Column("string", "lm-eval task or group of tasks, or perplexity entry."),
        "part_of": Column(
            "string",
            "Group in the configuration that this task or subgroup belongs to; null for tasks "
            "and groups that the configuration lists, which alone enter means over tasks.",
        ),
        "metric": Column(
            "string",
            "acc, acc_norm, exact_match (0 to 1) or another metric of the task, as metric,filter "
            "if it has filters; perplexity (1 upwards), nll (nats per token) and "
            "nll_per_log_vocabulary (1 = guessing) of a text. With `generate`, of greedy "
            "answers: exact_match,written (0 to 1; the right choice was generated), repetition "
            "(share of an answer's n-grams that occur earlier in it), unstopped (share of "
            "answers truncated at the maximum length) and length (tokens); of sampled answers: "
            "pass@k, sampled_repetition and so on.",
        ),
        "value": Column("double", "The measured number; a perplexity that overflows is infinite."),
        "stderr": Column(
            "double",
            "Standard error of value over test documents, in the same unit; null if the task "
            "gives none, or for one document.",
        ),
        "n_samples": Column(
            "int64",
            "Number of test documents; for a group, of all its tasks. For perplexity, number of "
            "documents with a scored token, or of blocks of windows (at most 30) if documents "
            "are joined.",
        ),
        "n_cut": Column(
            "int64",
            "Number of test documents whose prompt exceeds the model's context and was truncated "
            "on the left, as in lm-eval; 0 for perplexity.",
        ),
        "n_undecided": Column(
            "int64",
            "Number of test documents in which a right choice has the same tokens as a wrong "
            "one, so that no score decides between them and lm-eval takes the first; 0 for "
            "perplexity and generated answers. Null in tables of earlier versions.",
        ),
        "n_shot": Column(
            "int64",
            "Number of few-shot examples; 0 for perplexity, null for a group whose tasks differ.",
        ),
        "higher_is_better": Column(
            "bool",
            "False for perplexity, nll, repetition and unstopped; null if the task does not say.",
        ),
        "task_version": Column(
            "string",
            "Version of the task file; for perplexity, the window and its stride or joining "
            "string.",
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
            "Task in the group that the document belongs to; null if the task is not a group.",
        ),
        "sample": Column("int64", "Index of the test document, the same for every variant."),
        "metric": Column(
            "string",
            "Metric of the value; nll for documents of a perplexity.",
        ),
        "value": Column(
            "double",
            "Value of the document: 1 correct, 0 wrong for accuracies; nats per scored token for "
            "nll; for sampled answers, over all samples. If a group weights its tasks equally, "
            "values are scaled by task size so that their mean is the group's value.",
        ),
    },
)

EFFICIENCY = Table(
    grain=(
        "One row per variant, prompt and batch: size, speed and memory, with ratios to the base "
        "model, timed alternately with it. Variants have no healing here, since it is merged into "
        "the weights. Variants whose models differ only in the values of their weights and in the "
        "order of their layers share one timing. The view main_timings has the first prompt and "
        "batch."
    ),
    columns={
        **VARIANT_KEYS,
        "timed": Column(
            "string",
            "Variant that was timed: that of the row, or one whose layers have the same shapes and "
            "types. Null in tables of earlier versions.",
        ),
        "main": Column(
            "bool",
            "Whether prompt and batch are the first ones in the configuration, which the report "
            "uses. Null in tables of earlier versions, which have one of each.",
        ),
        "device": Column("string", "Device on which the run was timed."),
        "dtype": Column("string", "Floating point type of the weights."),
        "prompt": Column("int64", "Length of the prompt, in tokens."),
        "generate": Column("int64", "Number of tokens generated after the prompt."),
        "batch": Column("int64", "Batch size, in sequences."),
        "repeats": Column(
            "int64",
            "Number of timed repetitions of both the base model and the variant.",
        ),
        "parameters": Column(
            "int64", "Number of parameters, including patches; tied ones count once."
        ),
        "parameters_ratio": Column(
            "double",
            "parameters relative to the base model, 0 to about 1.",
        ),
        "weights_bytes": Column("int64", "Size of those parameters in memory, in bytes."),
        "weights_bytes_ratio": Column("double", "weights_bytes relative to the base model."),
        "kv_bytes_per_token": Column("int64", "KV cache per token and sequence, in bytes."),
        "kv_bytes_per_token_ratio": Column(
            "double",
            "kv_bytes_per_token relative to the base model.",
        ),
        "latency_ms": Column(
            "double",
            "Prefill time (up to the first new token), in milliseconds: the fastest of a few "
            "passes in each repetition, median over repetitions.",
        ),
        "latency_ratio": Column(
            "double",
            "Prefill time relative to the base model's, geometric mean over repetitions; below 1 "
            "is faster.",
        ),
        "latency_ratio_stderr": Column(
            "double",
            "Standard error of latency_ratio over repetitions: latency_ratio times the standard "
            "error of its mean logarithm. A 95 % interval applies Student's t with repeats - 1 "
            "degrees of freedom to the logarithm. Null for a single repetition.",
        ),
        "tokens_per_second": Column(
            "double",
            "Tokens generated per second after the first one, summed over the batch, median over "
            "repetitions; NaN if one token is generated.",
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
            "Weights plus the peak GPU memory of a repetition above the memory in use before it, "
            "in bytes; null on a CPU.",
        ),
        "peak_memory_ratio": Column(
            "double",
            "peak_memory_bytes relative to the base model; null on a CPU.",
        ),
    },
)
