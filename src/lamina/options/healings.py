"""Section `healings`: the options that all short fine-tunes after pruning share.

The options of one method stand in its module under `lamina.healing`.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lamina.options.entry import Choice, Filled, Weights, option, seed_option
from lamina.options.explain import invalid
from lamina.options.repairs import OWN


def _normalise_weights(data: dict[str, float] | str) -> dict[str, float]:
    """The weights by name; the weight of `own` alone says nothing."""
    weights = {data: 1.0} if isinstance(data, str) else data
    if set(weights) == {OWN}:
        return {OWN: 1.0}
    return weights


class Healing(Choice):
    """Short fine-tuning of the pruned model. `none` (no training) always exists."""

    # The keys of this class are those of every method, so that the cost of a training is known
    # before the run.

    BY = "method"
    PACKAGE = "lamina.healing"

    method: str = option("The fine-tuning method.")

    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)
    epochs: int = option("Passes over the data.", 10, ge=1)
    keep: Literal["best"] | Annotated[int, Field(ge=1)] = option(
        "Epoch whose weights are kept: `best` takes the one with the lowest validation loss; a "
        "number stops training after that epoch. The learning rate schedule covers all `epochs` "
        "in either case.",
        "best",
        allowed="best, or the number of an epoch",
    )
    checkpoints: list[Annotated[int, Field(ge=1)]] | None = option(
        "Epochs whose weights are tested too. Each becomes a separate healing NAME-EPOCH with "
        "`keep: EPOCH`, trained from the start. Studies that list NAME use all of them.",
        None,
    )
    batch: int = option("Samples per optimiser step.", 16, ge=1)
    warmup_steps: int = option(
        "Warm-up steps of the learning rate, at most a tenth of all steps; cosine decay follows.",
        100,
        ge=0,
    )
    max_steps: int | None = option(
        "Maximum number of optimiser steps; `null` trains for all epochs.", None, ge=1
    )
    seed: int = seed_option()
    data: Annotated[
        Annotated[Weights, Field(min_length=1)] | Filled, AfterValidator(_normalise_weights)
    ] = option(
        "Training data: `own` (the variant's own calibration), the name of another calibration, "
        "or names with the weight of one scored token of each, such as `{own: 1, corpus: 0.1}`. "
        "An epoch uses every sample of the calibration with the largest weight once. From each "
        "other one it draws a new share of samples, in proportion to its weight.",
        {OWN: 1.0},
        allowed="own, the name of a calibration, or weights above 0 by calibration, such as "
        "{own: 1, corpus: 0.1}",
        shown_default="`own`",
    )
    objective: Literal["lm", "distill", "lm+hidden"] = option(
        "Training loss. `lm`: cross-entropy of the gold tokens. `distill`: divergence from the "
        "base model's predictions, KL(base ‖ variant). `lm+hidden`: `lm` plus the relative "
        "squared error of the residual stream after each removed run of layers.",
        "lm",
    )
    temperature: float = option(
        "With `distill`: temperature that divides the logits; the loss is multiplied by its "
        "square.",
        1.0,
        gt=0,
    )

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        kept_epochs = [] if self.keep == "best" else [self.keep]
        for key, epochs in (("keep", kept_epochs), ("checkpoints", self.checkpoints or [])):
            if epochs and max(epochs) > self.epochs:
                raise invalid(
                    f"there is no epoch {max(epochs)}, because `epochs` is {self.epochs}. Write at "
                    f"most {self.epochs}, or more epochs.",
                    key,
                )
        if len(set(self.checkpoints or [])) < len(self.checkpoints or []):
            raise invalid("an epoch is listed twice. Leave one of them out.", "checkpoints")
        return self

    @property
    def trains_patches(self) -> bool:
        """Whether it trains the patches of a repair, which must then have some."""
        return False

    @property
    def update_rank(self) -> int | None:
        """The rank of the updates that are trained in place of weight matrices.

        None if the matrices are trained themselves.
        """
        return None

    @property
    def base_quantisation(self) -> str:
        """How the base model is loaded for the training: `none`, or `4bit`."""
        return "none"

    def weights(self, own: str) -> dict[str, float]:
        """The weight of a scored token by calibration; `own` is that of the variant."""
        assert isinstance(self.data, dict)
        weights: dict[str, float] = {}
        for name, weight in self.data.items():
            calibration = own if name == OWN else name
            weights[calibration] = weights.get(calibration, 0.0) + weight
        return weights

    def ordered_weights(self, own: str) -> list[tuple[str, float]]:
        """The weights of `weights`. Their order does not follow that in the configuration."""
        assert isinstance(self.data, dict)
        weights = self.weights(own)
        names = [own if name == OWN else name for name in sorted(self.data)]
        return [(name, weights[name]) for name in dict.fromkeys(names)]  # `own` may be named too
