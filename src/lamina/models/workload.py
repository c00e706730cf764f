"""How much a job has computed, written into its log: `3.2e+06 layer-tokens in 41 s, 8 of 20 sets`.

A layer-token is one token through one decoder layer, the unit in which `lamina_workflow.cost` counts what
jobs will do. The layers of the loaded models count it, so whatever runs them need not say how far
it is; a job that does a number of things can say that as well (`Workload.expect`).
`lamina_workflow.runtime.progress` reads in the end of the log how far the job is.
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
"""A step of generation reads all weights for one token of each text: with one text, it takes as
long as so many tokens of a prompt."""

_REPORT_INTERVAL = 15.0  # seconds

_logger = logging.getLogger(__name__)


class Workload:
    """The layer-tokens of this process, and earlier ones of killed processes that it continues."""

    def __init__(self) -> None:
        self.layer_tokens = 0.0
        self.earlier = 0.0
        self._unit = ""
        self._n_expected = 0
        self._n_done = 0
        self._started = 0.0
        self._reported = 0.0

    @property
    def total(self) -> float:
        """The layer-tokens of this and earlier processes."""
        return self.earlier + self.layer_tokens

    @property
    def counted(self) -> str:
        """What is done of what was expected, such as `8 of 20 sets`; empty if nothing was."""
        return f"{self._n_done} of {self._n_expected} {self._unit}" if self._n_expected else ""

    def expect(self, n_expected: int, unit: str) -> None:
        """Say how many things this job does, and what they are: `sets`."""
        self._n_done = 0
        self._n_expected = n_expected
        self._unit = unit

    def advance(self, n_done: int = 1) -> None:
        """Count things that are done; a forecast of their number is not exceeded."""
        self._n_done = min(self._n_done + n_done, self._n_expected)

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
        """Write into the log what is done: at the level DEBUG, which jobs alone let through."""
        self._reported = time.monotonic()
        seconds = self._reported - self._started
        text = f"{self.layer_tokens:.3g} layer-tokens in {seconds:.1f} s"
        if self.earlier:
            text += f", {self.earlier:.3g} before it"
        if self.counted:
            text += f", {self.counted}"
        _logger.debug("%s", text)


done = Workload()


def count_step(n_texts: int) -> int:
    """Tokens of a prompt that take as long as one more token of so many texts together."""
    return GENERATION_FACTOR - 1 + n_texts


def count_work(model: "PreTrainedModel") -> None:
    """Count what the layers of a model run from now on, also in variants that share or copy them."""
    from lamina.models.structure import layers_of

    for layer in layers_of(model):
        layer.register_forward_pre_hook(_count, with_kwargs=True)


def _count(layer: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    from torch import is_grad_enabled

    stream = args[0] if args else kwargs["hidden_states"]
    n_rows, n_tokens = stream.shape[:2]
    layer_tokens = count_step(n_rows) if n_tokens == 1 else n_rows * n_tokens
    done.add(layer_tokens * (TRAINING_FACTOR if is_grad_enabled() else 1))
