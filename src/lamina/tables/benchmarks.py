"""Table `benchmarks`, from tasks and perplexities."""

from lamina.tables.columns import BOOL, FLOAT, INT, STRING, VARIANT, Columns

GRAIN = "One row per variant, task and metric: a number measured on test data."

COLUMNS: Columns = VARIANT | {
    "task": (STRING, "lm-eval task or group of tasks, or perplexity entry."),
    "part_of": (
        STRING,
        "Group of the configuration that the task, or the group in it, was measured as part of; null for what the "
        "configuration names, which alone goes into means over tasks.",
    ),
    "metric": (
        STRING,
        "acc, acc_norm, exact_match (0 to 1) or another of the task's, as metric,filter where it has filters; "
        "perplexity (1 upwards), nll (nats per token) and nll_per_log_vocabulary (1 = guessing) of a text. By "
        "`generate`: exact_match,written (0 to 1; the right choice, written), repetition (share of an answer's n-grams "
        "that it has written before), unstopped (share of answers cut at the longest length) and length (tokens) of "
        "the likeliest answers; pass@k, and sampled_repetition and so on, of sampled ones.",
    ),
    "value": (FLOAT, "The measured number; a perplexity that overflows is infinite."),
    "stderr": (
        FLOAT,
        "Standard error of value over test documents, in the same unit; null where the task gives none, or for one "
        "document.",
    ),
    "n_samples": (
        INT,
        "Number of test documents, of a group those of its tasks; for perplexity documents too, those with a token to "
        "score.",
    ),
    "n_cut": (
        INT,
        "Number of them whose prompt is longer than the model's context and lost its oldest tokens, as in lm-eval; 0 "
        "for perplexity.",
    ),
    "n_shot": (INT, "Number of examples in the prompt; 0 for perplexity, null for a group whose tasks differ."),
    "higher_is_better": (
        BOOL,
        "False for perplexity, nll, repetition and unstopped; null where the task does not say.",
    ),
    "task_version": (STRING, "Version of the task file; window and stride of a perplexity."),
}
