"""Section `healings`: the short fine-tunes after pruning. A class here has the name and the options of a method."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from lamina.config.entry import ByValue, Entry, Filled, Named, Spelt, option, seed_option
from lamina.config.repairs import OWN

# The name of `data: own` in jobs, from the time when there was no other choice.
_OWN_ALONE = "calibration"


def _plain(data: dict[str, float] | str) -> dict[str, float] | str:
    weights = {data: 1.0} if isinstance(data, str) else data
    return _OWN_ALONE if set(weights) <= {OWN, _OWN_ALONE} else weights


class Healing(ByValue):
    """A short fine-tune of the pruned model. `none`, no training, always exists."""

    BY: ClassVar[str] = "method"

    method: str = option("The fine-tuning method.")

    @property
    def patches(self) -> bool:
        """Whether it trains the patches of a repair, which must then leave some."""
        return False

    def weights(self, own: str) -> dict[str, float]:
        """The weight of a scored token by calibration; `own` is that of the variant."""
        return {own: 1.0}


class Trained(Entry):
    """The options of every method that trains for some epochs."""

    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)
    epochs: int = option("Passes over the data; the one with the lowest validation loss is kept.", 10, ge=1)
    batch: int = option("Samples per optimiser step.", 16, ge=1)
    warmup_steps: int = option("Steps over which the learning rate rises; it falls as a cosine afterwards.", 100, ge=0)
    max_steps: int | None = option("Optimiser steps at most; `null` trains for all epochs.", None, ge=1)
    seed: int = seed_option()
    data: Annotated[
        Annotated[Named[Annotated[float, Spelt, Field(gt=0)]], Field(min_length=1)] | Filled, AfterValidator(_plain)
    ] = option(
        "What it trains on: `own`, the variant's own calibration (or `calibration`), the name of another one, or names "
        "with the weight of a scored token of each, such as `{own: 1, corpus: 0.1}`. A pass has every sample of the "
        "greatest weight once, and of the others their share, drawn anew.",
        _OWN_ALONE,
        allowed="own, the name of a calibration, or weights above 0 by calibration, such as {own: 1, corpus: 0.1}",
        shown_default="`own`",
    )
    objective: Literal["lm", "distill", "lm+hidden"] = option(
        "What training lowers: the loss of the right tokens (`lm`), the divergence from the unpruned model's "
        "predictions, KL(base ‖ variant) (`distill`), or `lm` and the squared distance from the unpruned model's "
        "stream where layers went, relative to its square (`lm+hidden`).",
        "lm",
    )
    temperature: float = option("With `distill`: by what logits are divided; the loss gets its square.", 1.0, gt=0)

    def weights(self, own: str) -> dict[str, float]:
        if isinstance(self.data, str):
            return {own: 1.0}
        weights: dict[str, float] = {}
        for name, weight in self.data.items():
            name = own if name == OWN else name
            weights[name] = weights.get(name, 0.0) + weight
        return weights


class Lora(Trained, Healing):
    """Low-rank updates of the projections that are left, after arXiv 2605.14075, appendix E.7, and the patches of the
    repair.
    """

    method: Literal["lora"] = "lora"
    rank: int = option("Rank of the update of each weight matrix.", 2, ge=1)
    alpha: float = option("Scale of the update, divided by the rank.", 2.0, gt=0)
    dropout: float = option("Dropout on the update's input.", 0.05, ge=0, lt=1)
    train: Literal["lora", "patch", "both"] = option(
        "What is trained: low-rank updates, the patches of the repair (from their closed form on), or both.", "lora"
    )
    targets: Literal["mlp", "attention", "all"] = option("Whose projections get a low-rank update.", "mlp")
    quantise: Literal["none", "4bit"] = option(
        "Train beside weights in 4 bits, to save memory (QLoRA, by bitsandbytes). The result is not quantised.",
        "none",
    )

    @property
    def patches(self) -> bool:
        return self.train != "lora"


class Full(Trained, Healing):
    """All weights of the pruned model, its embeddings and its head included: depth pruning with distillation, after
    Minitron (arXiv 2408.11796), or the same small model trained from nothing, to compare with.
    """

    method: Literal["full"] = "full"
    start: Literal["pruned", "random"] = option(
        "What training starts from: the weights that pruning left, or random ones, as transformers draws them for a "
        "model of this shape.",
        "pruned",
    )


read = Healing.from_options
