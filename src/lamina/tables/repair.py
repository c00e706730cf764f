"""The tables of repairs and healings: patches, and the training of healings."""

from lamina.tables.columns import VARIANT_KEYS, Column, Table

PATCHES = Table(
    grain=(
        "One row per variant and boundary: how well a repair was fitted. Errors are Frobenius "
        "norms relative to that of the target unless a name says mae; they are those of an "
        "operator that has not seen the held-out samples, while the patch that is used is fitted "
        "on all of them. Where a repair is fitted on several calibrations, errors are of all, "
        "each token with the weight that it is fitted with."
    ),
    columns={
        **VARIANT_KEYS,
        "healing": Column("string", "Always none: patches are fitted before healing."),
        "boundary": Column(
            "string",
            "The removed run as start-end in base numbering: layers start to end - 1 are gone; "
            "3.5 lies between attention and MLP of layer 3.",
        ),
        "start": Column("double", "Where the run begins; the patch maps the stream there."),
        "end": Column("double", "Where the run ends."),
        "refused": Column(
            "string",
            "Why the run cannot be repaired, and the remedy; all below is null then. Null for a "
            "fit.",
        ),
        "ridge": Column(
            "double",
            "Regularisation strength, relative to the mean eigenvalue of the Gram matrix; null "
            "without one.",
        ),
        "ridge_at_edge": Column(
            "bool",
            "Whether the choice fell on an edge of the grid, so that a better one may lie outside.",
        ),
        "rank": Column(
            "int64",
            "Largest rank that the operator may have: the hidden size C unless the repair limits "
            "it.",
        ),
        "fit_error_before": Column(
            "double",
            "Relative error at the boundary without the patch, on the samples not held out.",
        ),
        "fit_error": Column(
            "double",
            "Relative error with the patch, on the samples not held out.",
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
            "Standard error of heldout_error, likewise; null for one held-out document.",
        ),
        "mae_before": Column(
            "double",
            "Mean absolute error without the patch, in activation units, on the held-out samples.",
        ),
        "mae_after": Column(
            "double",
            "Mean absolute error with the patch, in activation units, on the held-out samples.",
        ),
        "fit_mae_before": Column(
            "double",
            "mae_before on half as many of the samples that are not held out, drawn by the seed.",
        ),
        "fit_mae_after": Column("double", "mae_after on those samples."),
        "channel_mae_before": Column("list<float>", "mae_before of each of the C channels."),
        "channel_mae_after": Column("list<float>", "mae_after of each of the C channels."),
        "antisymmetric_share": Column(
            "double",
            "Share of the squared Frobenius norm of M in (M - M^T) / 2, 0 to 1: what no symmetric "
            "patch can reach.",
        ),
        "singular_values": Column(
            "list<float>",
            "Singular values of M, C of them, the largest first.",
        ),
        "effective_rank": Column(
            "double",
            "Directions that M acts in, 1 to C: exp of the entropy of its squared singular values "
            "as shares of their sum.",
        ),
        "parameters": Column("int64", "Number of parameters that the patch adds at this boundary."),
        "trained_tokens": Column(
            "int64",
            "Tokens that gradients were taken on, those of each epoch counted; null without "
            "training.",
        ),
        "n_samples": Column(
            "int64",
            "Samples of all calibrations that the repair is fitted on, held-out ones included.",
        ),
        "n_heldout": Column(
            "int64",
            "How many different documents are held out; copies of one count once.",
        ),
        "n_tokens": Column(
            "int64",
            "Tokens of context and gold answer of those samples, each counted once whatever its "
            "weight.",
        ),
        "auto_weight": Column(
            "double",
            "Weight that `data` leaves to `auto`, the same at all boundaries of a variant; else "
            "null.",
        ),
        "general_loss_before": Column(
            "double",
            "Loss of the cut model without the repair, in nats per token, on the held-out samples "
            "of what `auto` weighs.",
        ),
        "general_loss": Column(
            "double",
            "The same with a repair that has not seen them; chosen among few weights on them.",
        ),
        "general_kept": Column(
            "bool",
            "Whether general_loss is within the tolerance; if not, no weight is, and it is the "
            "least.",
        ),
        "n_general": Column("int64", "Number of those held-out samples."),
        "loss_bare": Column(
            "double",
            "Loss of the cut model without the repair, in nats per token, on the held-out samples "
            "of the variant's own calibration. It and the four below are those of the plan; null "
            "for a portfolio's, which were chosen with their repair.",
        ),
        "loss_repaired": Column("double", "The same with a repair that has not seen them."),
        "loss_stderr": Column(
            "double",
            "Standard error of loss_repaired - loss_bare, over documents; null for one document.",
        ),
        "n_loss": Column("int64", "Number of those documents."),
        "hurts": Column(
            "bool",
            "Whether loss_repaired is surely higher: the difference is above 0 with its 95 % "
            "interval.",
        ),
    },
)

TRAINING = Table(
    grain=("One row per variant and optimiser step of its healing; step 0 is the model before it."),
    columns={
        **VARIANT_KEYS,
        "step": Column("int64", "Optimiser step, from 1; 0 before any training."),
        "epoch": Column("int64", "Pass over the training samples, from 1; 0 before any training."),
        "loss": Column(
            "double",
            "What the objective makes of the step's batch, in nats per scored token (with "
            "lm+hidden, the streams' relative squared error is added); null at step 0.",
        ),
        "validation_loss": Column(
            "double",
            "The same on the samples held out from training, those of several calibrations "
            "weighted as asked for; null but at step 0 and at the last step of an epoch.",
        ),
        "learning_rate": Column("double", "Learning rate of the step."),
        "tokens": Column(
            "int64",
            "Scored tokens trained on so far: those of gold answers, of texts all but the first.",
        ),
        "chosen": Column(
            "bool",
            "Whether the weights of this step were kept (lowest validation loss).",
        ),
    },
)
