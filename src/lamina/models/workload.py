"""How much a job has computed, written into its log: `3.2e+06 layer-tokens in 41 s`.

A layer-token is one token through one decoder layer, the unit in which `lamina_workflow.cost` counts what
jobs will do. The layers of the loaded models count it, so whatever runs them need not say how far
it is. `lamina_workflow.runtime.progress` reads in the end of the log how far the job is.
"""

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

TRAINING_FACTOR = 3
"""A backward pass computes a gradient for the activations and one for the weights: it adds two
forward passes."""
GENERATION_FACTOR = 16
"""A token that is generated reads all weights for itself: it takes as long as so many tokens of a
prompt."""

_REPORT_INTERVAL = 15.0  # seconds

_logger = logging.getLogger(__name__)


class Workload:
    """The layer-tokens of this process, and earlier ones of killed processes that it continues."""

    def __init__(self) -> None:
        self.layer_tokens = 0.0
        self.earlier = 0.0
        self._started = 0.0
        self._reported = 0.0

    @property
    def total(self) -> float:
        """The layer-tokens of this and earlier processes."""
        return self.earlier + self.layer_tokens

    def add(self, layer_tokens: float) -> None:
        """Count work that begins now."""
        now = time.monotonic()
        if not self._started:
            self._started = now
            self._reported = now
        elif now - self._reported >= _REPORT_INTERVAL:
            self.report()
        self.layer_tokens += layer_tokens

    def finish(self) -> None:
        """Write into the log what the whole job has done, if it has computed."""
        if self._started:
            self.report()

    def report(self) -> None:
        """Write into the log what is done."""
        self._reported = time.monotonic()
        seconds = self._reported - self._started
        before = f", {self.earlier:.3g} before it" if self.earlier else ""
        _logger.info("%.3g layer-tokens in %.1f s%s", self.layer_tokens, seconds, before)


done = Workload()


def count_work(model: "PreTrainedModel") -> None:
    """Count what the layers of a model run from now on, also in variants that share or copy them."""
    from lamina.models.structure import layers_of

    for layer in layers_of(model):
        layer.register_forward_pre_hook(_count, with_kwargs=True)


def _count(layer: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from torch import is_grad_enabled

    stream = args[0] if args else kwargs["hidden_states"]
    n_rows, n_tokens = stream.shape[:2]
    layer_tokens = n_rows * (GENERATION_FACTOR if n_tokens == 1 else n_tokens)
    done.add(layer_tokens * (TRAINING_FACTOR if is_grad_enabled() else 1))
