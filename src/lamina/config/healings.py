"""Section `healings`: what all short fine-tunes after pruning share; options of a method stand in its module."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lamina.config.entry import Choice, Filled, Weights, option, seed_option
from lamina.config.explain import wrong
from lamina.config.repairs import OWN


def _weights(data: dict[str, float] | str) -> dict[str, float]:
    weights = {data: 1.0} if isinstance(data, str) else data
    return {OWN: 1.0} if set(weights) == {OWN} else weights


class Healing(Choice):
    """A short fine-tune of the pruned model. `none`, no training, always exists."""

    # The keys of this class are those of every method, so that the cost of a training is known before the run.

    BY = "method"
    PACKAGE = "lamina.healing"

    method: str = option("The fine-tuning method.")

    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)
    epochs: int = option(
        "Passes over the data; the one with the lowest validation loss is kept.", 10, ge=1
    )
    batch: int = option("Samples per optimiser step.", 16, ge=1)
    warmup_steps: int = option(
        "Steps over which the learning rate rises, at most a tenth of all steps; it falls as a cosine afterwards.",
        100,
        ge=0,
    )
    max_steps: int | None = option(
        "Optimiser steps at most; `null` trains for all epochs.", None, ge=1
    )
    seed: int = seed_option()
    data: Annotated[Annotated[Weights, Field(min_length=1)] | Filled, AfterValidator(_weights)] = (
        option(
            "What it trains on: `own`, the variant's own calibration, the name of another one, or names with the weight of "
            "a scored token of each, such as `{own: 1, corpus: 0.1}`. A pass has every sample of the greatest weight once, "
            "and of the others their share, drawn anew.",
            {OWN: 1.0},
            allowed="own, the name of a calibration, or weights above 0 by calibration, such as {own: 1, corpus: 0.1}",
            shown_default="`own`",
        )
    )
    objective: Literal["lm", "distill", "lm+hidden"] = option(
        "What training lowers: the loss of the right tokens (`lm`), the divergence from the unpruned model's "
        "predictions, KL(base ‖ variant) (`distill`), or `lm` and the squared distance from the unpruned model's "
        "stream where layers went, relative to its square (`lm+hidden`).",
        "lm",
    )
    temperature: float = option(
        "With `distill`: by what logits are divided; the loss gets its square.", 1.0, gt=0
    )

    @model_validator(mode="after")
    def _check_warmup(self) -> Self:
        if (
            self.max_steps
            and "warmup_steps" in self.model_fields_set
            and self.warmup_steps >= self.max_steps
        ):
            raise wrong(
                f"{self.warmup_steps} is not less than max_steps, {self.max_steps}, so the learning rate would never "
                f"fall. Write at most {self.max_steps // 10}, a tenth.",
                "warmup_steps",
            )
        return self

    @property
    def trains_patches(self) -> bool:
        """Whether it trains the patches of a repair, which must then have some."""
        return False

    @property
    def update_rank(self) -> int | None:
        """The rank of the updates that are trained in place of weight matrices; None if these are trained themselves."""
        return None

    @property
    def base_quantisation(self) -> str:
        """In how many bits the base model is loaded for the training: `none`, or `4bit`."""
        return "none"

    def weights(self, own: str) -> dict[str, float]:
        """The weight of a scored token by calibration; `own` is that of the variant."""
        weights: dict[str, float] = {}
        for name, weight in dict(self.data).items():  # type: ignore[arg-type]
            name = own if name == OWN else name
            weights[name] = weights.get(name, 0.0) + weight
        return weights
