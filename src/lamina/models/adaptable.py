"""The linear modules of a model that low-rank updates can stand beside."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.structure import family_of, linear_maps


def paths(model: PreTrainedModel, targets: str) -> list[str]:
    """Full module names of the projections of `mlp`, `attention`, both (`all`) or `none`, of those there are now.

    Experts that are stacked parameters are none of them.

    Raises
    ------
    LaminaError
        If there are none.
    """
    parts = {"all": ("mlp", "attention"), "none": ()}.get(targets, (targets,))
    found = [name for part in parts for name in linear_maps(model, part)]
    if parts and not found:
        other = "attention" if targets == "mlp" else "mlp"
        raise LaminaError(
            f"the {' and '.join(parts)} of the model family '{family_of(model).name}' have no linear modules that LoRA "
            f"can adapt (experts may be stacked parameters). Write targets: {other}, or method: full."
        )
    return found


@contextmanager
def names_as_they_are(model: PreTrainedModel) -> Iterator[None]:
    """While open, PEFT takes the names of modules as they are.

    It would go by the model's type, and in families with experts take `gate_proj` for the experts that checkpoints had
    before transformers stacked them.
    """
    model.config.__dict__["model_type"] = ""
    try:
        yield
    finally:
        del model.config.__dict__["model_type"]
