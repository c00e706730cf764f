"""What lamina does with a tiny model of one type, against oracles that know nothing of lamina: hooks on the model.

Each trial ends in one of four ways: `yes` (equal), `no: reason` (refused by a LaminaError), `WRONG: how far` (a number
that is not that of the oracle, and nothing said) or `CRASH: what` (any other exception).
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep as engine
from lamina.errors import LaminaError
from lamina.healing import lora
from lamina.healing.lora import Lora
from lamina.models.boundary import Patch
from lamina.models.export import save
from lamina.models.export.check import check_cache
from lamina.models.materialise import materialise
from lamina.models.units import all_units
from lamina.variant import Variant
from tests.families.configurations import DEPTH, VOCABULARY

CLOSE = 1e-3
CUT = ["0", "2"]


class Differs(Exception):
    """Two numbers that should be equal are not."""


def text(length: int, seed: int) -> tuple[int, ...]:
    return tuple(
        torch.randint(
            4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)
        ).tolist()
    )


def samples() -> list[Sample]:
    """Two questions, whose answers share a context longer than a window and differ in length, and one text."""
    found = []
    for number in range(2):
        context = text(10 + 3 * number, number)
        rows = [Row(context, text(size, 10 * number + size), size) for size in (1, 4, 2)]
        found.append(Sample(number, "choices", number, tuple(rows), str(number)))
    words = text(17, 7)
    return [*found, Sample(2, "text", 0, (Row(words[:1], words[1:], 16),), "2")]


def stack(model: Any) -> list[nn.Module]:
    """The decoder's layers: of the lists of that many modules, the one that ran last in a forward pass."""
    found = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    lists = [m for m in found if len(m) == DEPTH] or [
        m for m in found if len(m) == model.config.num_hidden_layers
    ]
    order: list[int] = []
    handles = [
        layer.register_forward_hook(lambda *_, number=number: order.append(number))
        for number, found in enumerate(lists)
        for layer in found
    ]
    logits(model, [text(8, 0)])
    for handle in handles:
        handle.remove()
    tops = [
        n
        for n in dict.fromkeys(order)
        if not any(n != o and _within(lists[n], lists[o]) for o in set(order))
    ]
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
        first = output if isinstance(output, torch.Tensor) else output[0]
        # BLOOM's and MPT's add the residual themselves.
        nothing = (
            args[1]
            if "residual" in inspect.signature(module.forward).parameters
            else torch.zeros_like(first)
        )
        return nothing if isinstance(output, torch.Tensor) else type(output)((nothing, *output[1:]))

    def repaired(module: Any, args: Any, output: Any) -> Any:
        stream = output if isinstance(output, torch.Tensor) else output[0]
        wide = stream.double()
        wide = (wide + wide @ patch[1].operator.double() + patch[1].bias.double()).to(stream.dtype)
        return wide if isinstance(output, torch.Tensor) else type(output)((wide, *output[1:]))

    handles = []
    for unit in units:
        number, _, part = unit.partition(".")
        layer = layers[int(number)]
        if part:
            handles += [
                each.register_forward_hook(silent, with_kwargs=True) for each in half(layer, part)
            ]
        else:
            handles.append(layer.register_forward_hook(handing_on, with_kwargs=True))
    if patch is not None:
        handles.append(layers[patch[0] - 1].register_forward_hook(repaired))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_NAMED = {
    "attention": r"attn|attention|mixer|mamba|conv$|temporal|lstm_layer",
    "mlp": r"mlp|moe|feed_forward|ffn|fc2",
}


def half(layer: nn.Module, part: str) -> list[nn.Module]:
    """A layer's mixers or MLPs, told by their names."""
    return [
        module
        for name, module in layer.named_children()
        if re.search(_NAMED[part], name) and not re.search("norm|dropout|_input$|mlp_.*conv", name)
    ]


def close(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if not torch.isfinite(wanted).all():
        raise Differs(f"{what}: the oracle is not finite")
    difference = float((found.double() - wanted.double()).abs().max())
    # Logits of hundreds are rounded to fewer places.
    if not difference <= CLOSE * max(1.0, float(wanted.abs().max()) / 50):
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
    units = all_units(len(layers), kind)
    oracle = {"none": scored(model, rows)}
    found = engine.sweep_units(model, samples(), units)
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


def plan_of(units: list[str]) -> dict[str, Any]:
    kind = units[0].partition(".")[2] or "layer"
    selection = {
        "model": "tiny",
        "calibration": "words",
        "selector": "cosine",
        "removed": len(units),
    }
    measured = {
        "scores": [0.25] * len(units),
        "accuracy_before": None,
        "accuracy_after": None,
        "metric": "cosine",
    }
    return (
        selection
        | measured
        | {"units": units, "strategy": "one_shot", "kind": kind, "refused": None}
    )


def source(
    folder: Path, units: list[str], benchmarks: list[Any] | None = None, **repairs: str
) -> save.BaseSource:
    manifest = {
        "path": str(folder),
        "source": "lab/words",
        "revision": "main",
        "dtype": "auto",
        "weights_sha256": "0",
    }
    variant = Variant("tiny", "words", "cosine", len(units), **repairs)
    return save.BaseSource(variant, manifest, plan_of(units), benchmarks or [])


def exported(
    model: PreTrainedModel, folder: Path, units: list[str] | None = None, patch: Patch | None = None
) -> None:
    """A cut model, and its export loaded back, against the model with the layers bypassed."""
    units, ids, layers = units or CUT, [text(12, 3), text(12, 4)], stack(model)
    boundary = (int(units[0]), int(units[0]) + 1)
    with bypassed(layers, units, (boundary[1], patch) if patch else None):
        wanted = logits(model, ids)
    (folder / "base").mkdir(exist_ok=True)
    patches = {boundary: patch} if patch else None
    close(logits(materialise(model, {"units": units}, patches), ids), wanted, "cut:")
    save.export_variant(
        model,
        source(folder / "base", units, repair="ghost" if patch else "none"),
        folder / "out",
        patches,
    )
    back = AutoModelForCausalLM.from_pretrained(
        folder / "out", dtype="auto", trust_remote_code=patch is not None
    ).eval()
    close(logits(back, ids), wanted, "reloaded:")
    back.save_pretrained(folder / "again") if patch is None else None


def cache(model: PreTrainedModel, folder: Path) -> None:
    """A cut model's logits token by token from a cache are those of its whole text, where the model's own are."""
    kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or [
        "all"
    ] * len(stack(model))
    twice = next(
        str(number) for number in reversed(range(len(kinds))) if kinds.count(kinds[number]) > 1
    )
    for units in ([], CUT, [twice]):
        variant, ids = _writing(model, units), torch.tensor([text(8, 3)])
        with _of_the_unpruned("gives other logits from its own cache", bool(units)):
            tokens, found = _generated(variant, ids, torch.ones_like(ids))
            close(
                found[0], logits(variant, [tuple(tokens[0])])[0, 7:-1], f"cached without {units}:"
            )


def generation(model: PreTrainedModel, folder: Path) -> None:
    """What a cut model writes from a cache, beside a longer prompt, is what the model with its layers bypassed says."""
    prompts = [text(5, 3), text(9, 4)]
    width = max(map(len, prompts))
    # As lm-eval does: shorter prompts are filled up in front.
    ids = torch.tensor([(3,) * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    for units in ([], CUT):
        variant = _writing(model, units)
        with _of_the_unpruned("writes other text beside a longer prompt", bool(units)):
            tokens, found = _generated(variant, ids, mask)
            with bypassed(stack(model), units):
                for number, prompt in enumerate(prompts):
                    wanted = logits(model, [(*prompt, *tokens[number][width:])])[
                        0, len(prompt) - 1 : -1
                    ]
                    close(found[number], wanted, f"written without {units}:")


def _writing(model: PreTrainedModel, units: list[str]) -> PreTrainedModel:
    """The variant, as a benchmark of written answers takes it."""
    if not units:
        return model
    variant = materialise(model, {"units": units})
    check_cache(variant, model, "the variant")
    return variant


def _generated(
    model: Any, ids: torch.Tensor, mask: torch.Tensor
) -> tuple[list[list[int]], torch.Tensor]:
    """Six more tokens of each row and their logits (rows, 6, V)."""
    told = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    found = model.generate(ids, output_logits=True, return_dict_in_generate=True, **told)
    return found.sequences.tolist(), torch.stack(list(found.logits), dim=1)


@contextmanager
def _of_the_unpruned(fault: str, pruned: bool) -> Iterator[None]:
    """A fault of transformers, which the unpruned model has, is no fault of lamina's."""
    try:
        yield
    except Exception as error:
        if pruned:
            raise
        if isinstance(error, Differs):
            raise LaminaError(f"the unpruned model {fault} ({error})") from error
        raise LaminaError(
            f"the unpruned model does not generate ({type(error).__name__}: {error})"
        ) from error


def _stream_width(model: PreTrainedModel) -> int:
    """Channels of what goes from layer to layer, which may be several times what a token's embedding has."""
    seen: list[int] = []
    handle = stack(model)[1].register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (args[0] if args else kwargs["hidden_states"]).shape[-1]
        ),
        with_kwargs=True,
    )
    logits(model, [text(8, 0)])
    handle.remove()
    return seen[0]


def patched(model: PreTrainedModel, folder: Path) -> None:
    generator, width = torch.Generator().manual_seed(0), _stream_width(model)
    patch = Patch(
        torch.randn(width, width, generator=generator) / 10, torch.randn(width, generator=generator)
    )
    exported(model, folder, ["2"], patch)


def healing(model: PreTrainedModel, folder: Path) -> None:
    """An adapter with random weights on a cut model, saved and merged, against the same beside the weights."""
    healed = lora.prepare_training(
        materialise(model, {"units": CUT}), Lora(rank=2, alpha=4.0, targets="all")
    )
    generator, ids = torch.Generator().manual_seed(0), [text(12, 3)]
    for parameter in healed.weights.values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    lora.save(healed, folder)
    wanted = logits(healed.model.eval(), ids)
    close(logits(materialise(model, {"units": CUT}, None, folder), ids), wanted, "merged:")
    if float((logits(materialise(model, {"units": CUT}), ids) - wanted).abs().max()) < CLOSE:
        raise Differs("the adapter changes nothing")


_RUN: dict[str, Callable[[PreTrainedModel, Path], None]] = {
    "sweep": sweep,
    "halves": halves,
    "patch": patched,
}
_RUN |= {"healing": healing, "export": exported, "cache": cache, "generation": generation}
TRIALS = tuple(_RUN)


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
