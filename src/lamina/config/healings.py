"""Section `healings`: the short fine-tunes after pruning. A class here has the name and the options of a method."""

from typing import ClassVar, Literal

from lamina.config.entry import ByValue, option, seed_option


class Healing(ByValue):
    """A short fine-tune of the pruned model. `none`, no training, always exists."""

    BY: ClassVar[str] = "method"

    method: str = option("The fine-tuning method.")


class Lora(Healing):
    """Low-rank updates of the MLP projections that are left, after arXiv 2605.14075, appendix E.7."""

    method: Literal["lora"] = "lora"
    rank: int = option("Rank of the update of each weight matrix.", 2, ge=1)
    alpha: float = option("Scale of the update, divided by the rank.", 2.0, gt=0)
    dropout: float = option("Dropout on the update's input.", 0.05, ge=0, lt=1)
    learning_rate: float = option("Peak learning rate.", 0.0003, gt=0)
    epochs: int = option("Passes over the data; the one with the lowest validation loss is kept.", 10, ge=1)
    batch: int = option("Samples per optimiser step.", 16, ge=1)
    warmup_steps: int = option("Steps over which the learning rate rises; it falls as a cosine afterwards.", 100, ge=0)
    max_steps: int | None = option("Optimiser steps at most; `null` trains for all epochs.", None, ge=1)
    seed: int = seed_option()
    data: Literal["calibration"] = option(
        "What it trains on, the samples of the variant's own calibration.", "calibration"
    )


read = Healing.from_options
