"""Table `training`, from healings."""

from lamina.tables.columns import BOOL, FLOAT, INT, VARIANT, Columns

GRAIN = "One row per variant and optimiser step of its healing; step 0 is the model before it."

COLUMNS: Columns = VARIANT | {
    "step": (INT, "Optimiser step, from 1; 0 before any training."),
    "epoch": (INT, "Pass over the training samples, from 1; 0 before any training."),
    "loss": (
        FLOAT,
        "What the objective makes of the step's batch, in nats per scored token (with lm+hidden, the streams' relative "
        "squared error is added); null at step 0.",
    ),
    "validation_loss": (
        FLOAT,
        "The same on the samples held out from training, those of several calibrations weighted as asked for; null but "
        "at step 0 and at the last step of an epoch.",
    ),
    "learning_rate": (FLOAT, "Learning rate of the step."),
    "tokens": (INT, "Scored tokens trained on so far: those of gold answers, of texts all but the first."),
    "chosen": (BOOL, "Whether the weights of this step were kept (lowest validation loss)."),
}
