"""How much a job has computed, counted where it happens and written into its log: `3.2e+06 layer-tokens in 41 s`.

A layer-token is one token through one decoder layer, the unit in which `lamina.cost` counts what jobs will do. It is
counted by the layers of the models that are loaded, so whatever runs them need not say how far it is. The end of the
log tells `lamina.runtime.progress` how far the job is.
"""

import logging
import time
from typing import TYPE_CHECKING, Any

from lamina.errors import at_end

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

SECONDS = 15.0  # between two lines in a log
# A backward pass computes a gradient for the activations and one for the weights: it adds two forward passes.
TRAINING = 3
ALONE = 16  # a token that is generated reads all weights for itself: it takes as long as so many tokens of a prompt

_logger = logging.getLogger(__name__)


class Workload:
    """The layer-tokens of this process, and those `earlier` ones of killed processes whose results it goes on from."""

    def __init__(self) -> None:
        self.layer_tokens = self.earlier = 0.0
        self._started = self._reported = 0.0

    @property
    def total(self) -> float:
        """The layer-tokens of this and earlier processes."""
        return self.earlier + self.layer_tokens

    def add(self, layer_tokens: float) -> None:
        """Count work that begins now."""
        now = time.monotonic()
        if not self._started:
            self._started = self._reported = now
            at_end(self.report)
        elif now - self._reported >= SECONDS:
            self.report()
        self.layer_tokens += layer_tokens

    def report(self) -> None:
        """Write into the log what is done."""
        self._reported = time.monotonic()
        seconds, earlier = self._reported - self._started, f", {self.earlier:.3g} before it"
        _logger.info(
            "%.3g layer-tokens in %.1f s%s",
            self.layer_tokens,
            seconds,
            earlier if self.earlier else "",
        )


done = Workload()


def watch(model: "PreTrainedModel") -> None:
    """Count what the layers of a model run from now on, also in variants that share or copy them."""
    from lamina.models.structure import layers_of

    for layer in layers_of(model):
        layer.register_forward_pre_hook(_count, with_kwargs=True)


def _count(layer: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from torch import is_grad_enabled

    stream = args[0] if args else kwargs["hidden_states"]
    lines, length = stream.shape[:2]
    tokens = lines * (ALONE if length == 1 else length)
    done.add(tokens * (TRAINING if is_grad_enabled() else 1))
