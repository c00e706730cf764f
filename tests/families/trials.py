"""What lamina does with a tiny model of one type, against oracles that know nothing of lamina: hooks on the model.

Each trial ends in one of four ways: `yes` (equal), `no: reason` (refused by a LaminaError), `WRONG: how far` (a number
that is not that of the oracle, and nothing said) or `CRASH: what` (any other exception).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.config.healings import Lora
from lamina.data.calibrations import Row, Sample
from lamina.errors import LaminaError
from lamina.healing import lora
from lamina.models import export
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.sweep import engine
from lamina.variant import Variant
from tests.families.configurations import DEPTH, VOCABULARY, WIDTH

TRIALS = ("sweep", "halves", "export", "cache", "patch", "healing")
CLOSE = 1e-3
CUT = ["0", "2"]


class Differs(Exception):
    """Two numbers that should be equal are not."""


def text(length: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def samples() -> list[Sample]:
    """Two questions, whose answers share a context longer than a window and differ in length, and one text."""
    found = []
    for number in range(2):
        context = text(10 + 3 * number, number)
        rows = [Row(context, text(size, 10 * number + size), size) for size in (1, 4, 2)]
        found.append(Sample(number, "choices", number, tuple(rows), str(number)))
    words = text(17, 7)
    return [*found, Sample(2, "text", 0, (Row(words[:1], words[1:], 16),), "2")]


def stack(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers: of the lists of that many modules, the one that ran last in a forward pass."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == DEPTH]
    order: list[int] = []
    handles = [
        layer.register_forward_hook(lambda *_, number=number: order.append(number))
        for number, found in enumerate(lists)
        for layer in found
    ]
    logits(model, [text(8, 0)])
    for handle in handles:
        handle.remove()
    tops = [n for n in dict.fromkeys(order) if not any(n != o and _within(lists[n], lists[o]) for o in set(order))]
    return list(lists[tops[-1]])


def _within(inner: nn.ModuleList, outer: nn.ModuleList) -> bool:
    return any(module is inner for layer in outer for module in layer.modules())


@torch.no_grad()
def logits(model: Any, rows: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Of rows of one length, (rows, length, V), each row alone and with nothing kept."""
    return torch.cat([model(input_ids=torch.tensor([row]), use_cache=False).logits for row in rows])


@contextmanager
def bypassed(
    layers: Sequence[nn.Module], units: Sequence[str], patch: tuple[int, Patch] | None = None
) -> Iterator[None]:
    """While open, layers hand their input on, sub-layers add nothing, and a patch is on what leaves a layer."""

    def handing_on(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        stream = args[0] if args else kwargs["hidden_states"]
        return stream if isinstance(output, torch.Tensor) else type(output)((stream, *output[1:]))

    def silent(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        nothing = args[1] if "bloom" in type(module).__name__.lower() else torch.zeros_like(first)
        return (nothing, *output[1:]) if isinstance(output, tuple) else nothing

    def repaired(module: Any, args: Any, output: Any) -> Any:
        stream = output if isinstance(output, torch.Tensor) else output[0]
        wide = stream.double()
        wide = wide + wide @ patch[1].operator.double() + patch[1].bias.double()
        return (wide.to(stream.dtype), *output[1:]) if isinstance(output, tuple) else wide.to(stream.dtype)

    handles = []
    for unit in units:
        number, _, part = unit.partition(".")
        layer = layers[int(number)]
        if part:
            handles.append(half(layer, part).register_forward_hook(silent, with_kwargs=True))
        else:
            handles.append(layer.register_forward_hook(handing_on, with_kwargs=True))
    if patch is not None:
        handles.append(layers[patch[0] - 1].register_forward_hook(repaired))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def half(layer: nn.Module, part: str) -> nn.Module:
    """A layer's mixer or MLP, told by its class."""
    words = {
        "attention": ("attention", "attn", "mixer", "mamba", "deltanet", "conv", "recurrent", "lightning"),
        "mlp": ("mlp", "moe", "feedforward", "ffn", "experts", "sparse"),
    }
    told = [module for module in layer.children() if any(w in type(module).__name__.lower() for w in words[part])]
    if not told and part == "mlp":
        told = [layer.get_submodule("fc2")]
    return told[-1]


def close(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if not torch.isfinite(wanted).all():
        raise Differs(f"{what}: the oracle is not finite")
    difference = float((found.double() - wanted.double()).abs().max())
    if not difference <= CLOSE:
        raise Differs(f"{what} {difference:.2g}")


def scored(model: Any, rows: Sequence[Row]) -> torch.Tensor:
    """Log-likelihood of each row's continuation, one plain pass per row."""
    found = []
    for row in rows:
        ids = row.context + row.continuation
        told = logits(model, [ids]).log_softmax(-1)[0, len(row.context) - 1 : -1]
        found.append(told.gather(-1, torch.tensor(row.continuation)[:, None]).double().sum())
    return torch.stack(found)


def sweep(model: PreTrainedModel, folder: Path, kind: str = "layer") -> None:
    layers, rows = stack(model), [row for sample in samples() for row in sample.rows]
    units = engine.all_units(DEPTH, kind)
    oracle = {"none": scored(model, rows)}
    found = engine.sweep(model, samples(), units)
    for unit in units:
        with bypassed(layers, [unit]):
            oracle[unit] = scored(model, rows)
    for unit, wanted in oracle.items():
        close(torch.from_numpy(found.loglikelihood[found.index[unit]]), wanted, f"without {unit}:")


def halves(model: PreTrainedModel, folder: Path) -> None:
    """Both halves of each layer in sweeps, and each in a variant that has lost them."""
    ids, layers = [text(12, 3), text(12, 4)], stack(model)
    for kind in ("attention", "mlp"):
        sweep(model, folder, kind)
    units = ["1.attention", "2.mlp", "3.attention"]
    with bypassed(layers, units):
        wanted = logits(model, ids)
    close(logits(materialise(model, {"units": units}), ids), wanted, "cut halves:")


def _source(folder: Path, units: list[str], **repairs: str) -> export.Source:
    manifest = {"path": str(folder), "source": "lab/words", "revision": "main", "dtype": "auto", "weights_sha256": "0"}
    measured = {"scores": [0.25] * len(units), "accuracy_before": None, "accuracy_after": None, "metric": "cosine"}
    plan = {"model": "t", "calibration": "c", "selector": "s", "removed": len(units), "units": units, **measured}
    plan |= {"strategy": "one_shot", "kind": "layer", "refused": None}
    return export.Source(Variant("t", "c", "s", len(units), **repairs), manifest, plan, [])


def exported(model: PreTrainedModel, folder: Path, units: list[str] | None = None, patch: Patch | None = None) -> None:
    """A cut model, and its export loaded back, against the model with the layers bypassed."""
    units, ids, layers = units or CUT, [text(12, 3), text(12, 4)], stack(model)
    boundary = (int(units[0]), int(units[0]) + 1)
    with bypassed(layers, units, (boundary[1], patch) if patch else None):
        wanted = logits(model, ids)
    (folder / "base").mkdir(exist_ok=True)
    patches = {boundary: patch} if patch else None
    close(logits(materialise(model, {"units": units}, patches), ids), wanted, "cut:")
    export.export(
        model, _source(folder / "base", units, recovery="ghost" if patch else "none"), folder / "out", patches
    )
    back = AutoModelForCausalLM.from_pretrained(
        folder / "out", dtype="auto", trust_remote_code=patch is not None
    ).eval()
    close(logits(back, ids), wanted, "reloaded:")
    back.save_pretrained(folder / "again") if patch is None else None


def cache(model: PreTrainedModel, folder: Path) -> None:
    """A cut model's logits token by token from a cache are those of its whole text, where the model's own are."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ["all"] * DEPTH
    twice = next(str(number) for number in reversed(range(DEPTH)) if kinds.count(kinds[number]) > 1)
    for units in ([], CUT, [twice]):
        variant = materialise(model, {"units": units}) if units else model
        ids = torch.tensor([text(8, 3)])
        told = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        generated = variant.generate(ids, output_logits=True, return_dict_in_generate=True, **told)
        tokens = tuple(generated.sequences[0].tolist())
        try:
            close(torch.cat(generated.logits), logits(variant, [tokens])[0, 7:-1], f"cached without {units}:")
        except Differs as error:
            if not units:
                raise LaminaError(f"the unpruned model's own cache gives other logits ({error})") from error
            raise


def patched(model: PreTrainedModel, folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    patch = Patch(torch.randn(WIDTH, WIDTH, generator=generator) / 10, torch.randn(WIDTH, generator=generator))
    exported(model, folder, ["2"], patch)


def healing(model: PreTrainedModel, folder: Path) -> None:
    """An adapter with random weights on a cut model, saved and merged, against the same beside the weights."""
    for targets in ("all",):
        healed = lora.trainable(materialise(model, {"units": CUT}), Lora(rank=2, alpha=4.0, targets=targets))
        generator, ids = torch.Generator().manual_seed(0), [text(12, 3)]
        for parameter in healed.weights.values():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 20)
        lora.save(healed, folder / targets)
        wanted = logits(healed.model.eval(), ids)
        merged = materialise(model, {"units": CUT}, None, folder / targets)
        close(logits(merged, ids), wanted, f"merged {targets}:")
        if float((logits(materialise(model, {"units": CUT}), ids) - wanted).abs().max()) < CLOSE:
            raise Differs("the adapter changes nothing")


_RUN: dict[str, Callable[[PreTrainedModel, Path], None]] = {
    "sweep": sweep,
    "halves": halves,
    "export": exported,
    "cache": cache,
    "patch": patched,
    "healing": healing,
}


def outcome(trial: str, model: PreTrainedModel, folder: Path) -> str:
    """How one trial ends; `folder` is empty and its own."""
    try:
        _RUN[trial](model, folder)
    except LaminaError as error:
        return f"no: {error}"
    except Differs as error:
        return f"WRONG: {error}"
    except Exception as error:
        return f"CRASH: {type(error).__name__}: {error}"
    return "yes"
