"""Variants of tiny models: their plans, random patches and adapters, and what an export needs."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.healing import lora
from lamina.healing.lora import Lora
from lamina.models.boundary import Patch
from lamina.models.export import save
from lamina.models.materialise import materialise
from lamina.selection.plans import UnitPrices
from lamina.variant import Variant
from tests.given import tiny


def plan_of(units: list[str]) -> dict[str, Any]:
    """The plan with these edits."""
    return {
        "model": "tiny",
        "calibration": "words",
        "selector": "cosine",
        "removed": UnitPrices().size_of(units),
        "metric": "cosine",
        "strategy": "one_shot",
        "kind": units[0].partition(".")[2] or "layer",
        "units": units,
        "scores": [0.25] * len(units),
        "accuracy_before": None,
        "accuracy_after": None,
        "refused": None,
    }


def base_folder(folder: Path) -> Path:
    """Write what a model's folder holds beside its weights: tokenizer, card and licence."""
    tiny.tokenizer().save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# Words\n")
    (folder / "LICENSE").write_text("a licence\n")
    return folder


def source_of(
    folder: Path, units: list[str], benchmarks: list[Any] | None = None, **methods: str
) -> save.BaseSource:
    """What an export says about the base model in `folder` and the variant without these units.

    methods: `repair` and `healing` of the variant.
    """
    manifest = {
        "path": str(folder),
        "source": "lab/words",
        "revision": "main",
        "dtype": "auto",
        "weights_sha256": "0",
    }
    plan = plan_of(units)
    variant = Variant("tiny", "words", "cosine", plan["removed"], **methods)
    return save.BaseSource(variant, manifest, plan, benchmarks or [])


def random_patch(width: int = 32, seed: int = 0) -> Patch:
    """A random operator (width, width), small beside the identity, and a random bias (width,)."""
    generator = torch.Generator().manual_seed(seed)
    operator = torch.randn(width, width, generator=generator) / 10
    bias = torch.randn(width, generator=generator)
    return Patch(operator, bias)


def random_adapter(base: PreTrainedModel, units: list[str], folder: Path) -> None:
    """Write an adapter as a healing leaves it, with random weights."""
    variant = materialise(base, {"units": units})
    healed = lora.prepare_training(variant, Lora(rank=2, alpha=4.0))
    generator = torch.Generator().manual_seed(0)
    for parameter in healed.weights.values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    lora.save(healed, folder)


@torch.no_grad()
def compute_logits(model: PreTrainedModel, token_ids: torch.Tensor) -> torch.Tensor:
    """Logits (rows, length, vocabulary) of one pass without a cache."""
    return model(input_ids=token_ids, use_cache=False).logits
