"""The tables of repairs and healings: patches, and the training of healings."""

from lamina.tables.columns import VARIANT_KEYS, Column, Table

PATCHES = Table(
    grain=(
        "One row per variant and boundary: how well a repair was fitted. Errors are Frobenius "
        "norms relative to the norm of the target, unless the name says mae. They are measured "
        "on a map that was fitted without the held-out samples; the patch that is used is fitted "
        "on all samples. If a repair is fitted on several calibrations, errors cover all of "
        "them, each token with its weight in the fit."
    ),
    columns={
        **VARIANT_KEYS,
        "healing": Column("string", "Always none: patches are fitted before healing."),
        "boundary": Column(
            "string",
            "The removed run as start-end, numbered as in the base model: layers start to end - "
            "1 are removed; 3.5 lies between attention and MLP of layer 3.",
        ),
        "start": Column("double", "Start of the run, where the patch maps the residual stream."),
        "end": Column("double", "End of the run."),
        "refused": Column(
            "string",
            "Why the run cannot be repaired, and the remedy; the columns below are then null. "
            "Null for a fit.",
        ),
        "ridge": Column(
            "double",
            "Regularisation strength, relative to the mean eigenvalue of the Gram matrix; null "
            "without one.",
        ),
        "ridge_at_edge": Column(
            "bool",
            "Whether the chosen ridge is at an edge of the grid, so that a better one may lie "
            "outside.",
        ),
        "rank": Column(
            "int64",
            "Maximum rank of the map M: the hidden size C unless the repair limits it.",
        ),
        "fit_error_before": Column(
            "double",
            "Relative error at the boundary without the patch, on the samples that are not held "
            "out.",
        ),
        "fit_error": Column(
            "double",
            "Relative error with the patch, on the samples that are not held out.",
        ),
        "heldout_error_before": Column(
            "double",
            "Relative error without the patch, on the held-out samples.",
        ),
        "heldout_error": Column(
            "double",
            "Relative error with the patch, on the held-out samples.",
        ),
        "heldout_error_before_stderr": Column(
            "double",
            "Standard error of heldout_error_before, from a bootstrap over held-out documents.",
        ),
        "heldout_error_stderr": Column(
            "double",
            "Standard error of heldout_error, from the same bootstrap; null for one held-out "
            "document.",
        ),
        "mae_before": Column(
            "double",
            "Mean absolute error without the patch, in units of the activations, on the held-out "
            "samples.",
        ),
        "mae_after": Column(
            "double",
            "Mean absolute error with the patch, in units of the activations, on the held-out "
            "samples.",
        ),
        "fit_mae_before": Column(
            "double",
            "mae_before on samples that are not held out: half as many as the held-out ones, "
            "drawn by the seed.",
        ),
        "fit_mae_after": Column("double", "mae_after on those samples."),
        "channel_mae_before": Column("list<float>", "mae_before of each of the C channels."),
        "channel_mae_after": Column("list<float>", "mae_after of each of the C channels."),
        "antisymmetric_share": Column(
            "double",
            "Share of the squared Frobenius norm of M in (M - M^T) / 2, 0 to 1, which no "
            "symmetric patch can represent.",
        ),
        "singular_values": Column(
            "list<float>",
            "Singular values of M, C of them, the largest first.",
        ),
        "effective_rank": Column(
            "double",
            "Effective rank of M, 1 to C: exp of the entropy of its squared singular values, "
            "normalised to sum to 1.",
        ),
        "parameters": Column("int64", "Number of parameters that the patch adds at this boundary."),
        "trained_tokens": Column(
            "int64",
            "Tokens used for gradients, summed over epochs; null without training.",
        ),
        "n_samples": Column(
            "int64",
            "Samples of all calibrations that the repair is fitted on, including held-out ones.",
        ),
        "n_heldout": Column(
            "int64",
            "Number of distinct held-out documents.",
        ),
        "n_tokens": Column(
            "int64",
            "Tokens of context and gold answer of the n_samples samples, each counted once "
            "regardless of its weight.",
        ),
        "auto_weight": Column(
            "double",
            "Weight that was chosen for `auto` in `data`, the same at all boundaries of a "
            "variant; null without `auto`.",
        ),
        "general_loss_before": Column(
            "double",
            "Loss of the pruned model without the repair, in nats per token, on held-out samples "
            "of the calibrations with weight `auto`.",
        ),
        "general_loss": Column(
            "double",
            "The same with a repair fitted without these samples; its weight was chosen on them "
            "from a small grid.",
        ),
        "general_kept": Column(
            "bool",
            "Whether general_loss is within the tolerance. If not, no weight is, and "
            "general_loss is the lowest of all weights.",
        ),
        "n_general": Column("int64", "Number of these held-out samples."),
        "loss_bare": Column(
            "double",
            "Loss of the pruned model without the repair, in nats per token, on held-out samples "
            "of the variant's own calibration. This column and the next four describe the whole "
            "plan; null for plans of a portfolio, which were chosen with their repair.",
        ),
        "loss_repaired": Column("double", "The same with a repair fitted without these samples."),
        "loss_stderr": Column(
            "double",
            "Standard error of loss_repaired - loss_bare, over documents; null for one document.",
        ),
        "n_loss": Column("int64", "Number of these documents."),
        "hurts": Column(
            "bool",
            "Whether loss_repaired is significantly higher: the 95 % interval of the difference "
            "lies above 0.",
        ),
    },
)

TRAINING = Table(
    grain=(
        "One row per variant and optimiser step of its healing; step 0 is the model before "
        "training."
    ),
    columns={
        **VARIANT_KEYS,
        "step": Column("int64", "Optimiser step, from 1; 0 before any training."),
        "epoch": Column("int64", "Epoch, from 1; 0 before any training."),
        "loss": Column(
            "double",
            "Training loss on the step's batch, in nats per scored token (with lm+hidden, plus "
            "the relative squared error of the streams); null at step 0.",
        ),
        "validation_loss": Column(
            "double",
            "The same on the samples held out from training; several calibrations are weighted "
            "as configured. Null except at step 0 and at the last step of an epoch.",
        ),
        "learning_rate": Column("double", "Learning rate of the step."),
        "tokens": Column(
            "int64",
            "Scored tokens trained on so far: tokens of gold answers; in texts, all tokens but "
            "the first.",
        ),
        "chosen": Column(
            "bool",
            "Whether the weights of this step were kept (lowest validation loss).",
        ),
    },
)
