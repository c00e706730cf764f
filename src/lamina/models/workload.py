"""Logs how much a job has computed: `3.2e+06 layer-tokens in 41 s, 8 of 20 sets`.

A layer-token is one token through one decoder layer, the unit in which `lamina_workflow.cost`
predicts work. The layers of the loaded models count them, so the code that runs the layers need not
report progress. A job can also count items of its own (`Workload.expect`).
`lamina_workflow.runtime.progress` reads the progress from the end of the log.
"""

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

TRAINING_FACTOR = 3
"""Cost of a training step in forward passes. The backward pass costs two: one for the gradient of
the activations, one for that of the weights."""
GENERATION_FACTOR = 16
"""Prompt tokens that take as long as one generation step of one text. A step reads all weights for
one token of each text."""

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
        """Set how many items this job will do, and what they are called, such as `sets`."""
        self._n_done = 0
        self._n_expected = n_expected
        self._unit = unit

    def advance(self, n_done: int = 1) -> None:
        """Count items that are done, up to the expected number."""
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
        """Log the work of the whole job, if it has computed anything."""
        if self._started:
            self.report()

    def report(self) -> None:
        """Log the work so far, at the level DEBUG, which only jobs let through."""
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
    """How many prompt tokens take as long as one generation step of `n_texts` texts together."""
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
