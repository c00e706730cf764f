"""Checks of a model against itself: its logits when layers hand their input on, by a plain forward pass with hooks.

Every number of lamina assumes that it does to a model what cutting its layers would do. A sweep's streams, a cut model
and an export all do this in another way, so each of them is compared with these few lines before it is trusted.

What was found out about a model in memory is noted, so that nothing is proven twice. A finding holds for texts of up to
so many tokens. Rule check_model writes the findings on a model into check.json; a job that loads the same model in the
same way begins with them, and proves what they leave open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import devices
from lamina.models.boundary import share
from lamina.models.structure import layers_of, text_config
from lamina.models.surgery import remove

ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3}
"""The largest `distance` of logits that is allowed, by dtype of the model; `COARSE` for other dtypes."""
COARSE = 0.1

_SHORT, _LONG = 16, 64  # tokens
_COMPARED = (
    1 << 21
)  # logits of a row that are compared at a time, so that a vocabulary of 262,144 takes no more memory
_CHUNK = 1 << 27  # numbers of logits computed at a time: 256 MiB in bfloat16
_WHOLE = "causal, and can be cut"  # the name under which the result is kept
_findings: "WeakKeyDictionary[PreTrainedModel, dict[str, dict[str, Any]]]" = WeakKeyDictionary()


def removals(model: PreTrainedModel) -> list[int]:
    """Layers whose removal is tested: an early and a late one, and one of each other kind."""
    layers = layers_of(model)
    types = getattr(text_config(model), "layer_types", None) or [None] * len(layers)
    kinds = [
        (name, {type(module) for module in layer.modules()})
        for name, layer in zip(types, layers, strict=True)
    ]
    chosen = sorted({len(layers) // 3, len(layers) - 1})
    for layer, kind in enumerate(kinds):
        if all(kinds[other] != kind for other in chosen):
            chosen.append(layer)
    return chosen


@contextmanager
def refused(saying: str) -> Iterator[None]:
    """Refuse a model whose code raises any error, except for a lack of memory, which is not the model's fault."""
    try:
        yield
    except (LaminaError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # a family's code
        raise LaminaError(f"{saying} ({type(error).__name__}: {error}).") from error


def short(sequences: Sequence[Sequence[int]]) -> Sequence[int]:
    """The sequence on which a model is checked: the shortest one that is long enough, else the longest, cut off."""
    order = sorted(sequences, key=len)
    return next((ids for ids in order if len(ids) >= _SHORT), order[-1])[:_LONG]


def places(model: PreTrainedModel, ids: Sequence[int]) -> int:
    """Last positions of a row whose logits are compared: half of it, up to 64, and fewer with a large vocabulary."""
    return max(1, min(_LONG, len(ids) // 2, _COMPARED // text_config(model).vocab_size))


def logits(model: PreTrainedModel, ids: Sequence[int], last: int) -> torch.Tensor:
    """Logits of the last positions of one row, run alone: (last, V)."""
    return without(model, ids, last, [frozenset()])[0]


@contextmanager
def scored(model: PreTrainedModel, places: slice) -> Iterator[None]:
    """While open, only these positions are multiplied by the vocabulary matrix, so that long rows fit into memory."""
    head = model.get_output_embeddings()
    if head is None:
        yield
        return
    with head.register_forward_pre_hook(
        lambda module, args: (args[0][:, places],) if args[0].dim() == 3 else None
    ):
        yield


@torch.inference_mode()
def without(
    model: PreTrainedModel, ids: Sequence[int], last: int, gone: Sequence[frozenset[int]]
) -> torch.Tensor:
    """Logits (len(gone), last, V) of one row where the layers of each set hand their input on."""
    size = max(1, _CHUNK // (last * text_config(model).vocab_size))
    chunks = []
    for start in range(0, len(gone), size):
        sets = gone[start : start + size]
        rows = torch.tensor([ids], device=model.device).expand(len(sets), -1)
        with _bypassed(layers_of(model), sets), scored(model, slice(-last, None)):
            chunks.append(model(input_ids=rows, use_cache=False).logits[:, -last:].clone())
    return torch.cat(chunks)


@contextmanager
def _bypassed(layers: Iterable[nn.Module], gone: Sequence[frozenset[int]]) -> Iterator[None]:
    """While open, row n of a batch passes by the layers in gone[n]."""
    rows: dict[nn.Module, list[int]] = {}
    entered: dict[nn.Module, torch.Tensor] = {}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A copy, since a layer may add to its input in place.
        entered[module] = (args[0] if args else next(iter(kwargs.values())))[rows[module]].clone()

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        stream = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        stream[rows[module]] = entered.pop(module).to(stream.device)
        return stream if isinstance(output, torch.Tensor) else type(output)((stream, *output[1:]))

    with ExitStack() as hooks:
        for number, layer in enumerate(layers):
            rows[layer] = [row for row, lacking in enumerate(gone) if number in lacking]
            if rows[layer]:
                hooks.enter_context(layer.register_forward_pre_hook(enter, with_kwargs=True))
                hooks.enter_context(layer.register_forward_hook(leave))
        yield


def tolerance(model: PreTrainedModel) -> float:
    """The largest `distance` that rounding explains in the dtype of a model."""
    return ROUNDING.get(model.dtype, COARSE)


def distance(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> float:
    """How far logits `found` (positions, V) are from `wanted`, relative to how far `wanted` is from its mean.

    The largest value over positions. In 16 bits it is the median, because rounding sometimes sends a token to another
    expert. A position where only one of the two is finite is infinitely far.
    """
    found, wanted = found.float(), wanted.float().to(found.device)
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-30)
    far = (found - wanted).norm(dim=-1) / spread
    far = torch.where(found.isfinite().all(-1) | wanted.isfinite().all(-1), far, 0).nan_to_num(
        torch.inf
    )
    return float(far.max() if dtype in ROUNDING else far.median())


def check(model: PreTrainedModel, ids: Sequence[int], longest: Sequence[int]) -> None:
    """Refuse a model whose logits depend on later tokens, or differ between layers that are cut and layers passed by.

    Both on the longest row, because windows and chunks change nothing before their size, and some rotations of
    positions depend on the length of a text.

    Raises LaminaError, which says which of them, and by how much.
    """
    if finding(model, _WHOLE, len(longest)):
        return
    name, most, last = text_config(model).model_type, tolerance(model), places(model, longest)
    # Tokens of the first half, and those before the last one: a model that keeps the best tokens turns anywhere.
    for behind in (last, 1):
        before = logits(model, longest[:-behind] or ids, last)
        again = logits(model, longest, behind + len(before))[: len(before)]
        far = distance(before, again, model.dtype)
        if far > most:
            break
    if far > most:
        # Which logits damaged weights make NaN may depend on the length of a row.
        if before.isnan().any() or again.isnan().any():
            raise not_numbers(model)
        ahead = _looks_ahead(model, ids)
        if ahead > most:
            raise LaminaError(
                f"the model family '{name}' looks ahead: another ending moves the logits of the tokens before it (by "
                f"{ahead:.2g} of their spread). lamina needs a causal decoder, which predicts each token from those "
                "before."
            )
        raise LaminaError(
            f"the model family '{name}' gives the same tokens other logits in a text of {len(longest)} tokens than "
            f"in a shorter one (by {far:.2g} of their spread): a number would depend on what runs beside a text, or "
            "before it. Calibrate on shorter texts."
        )
    depth = len(layers_of(model))
    if depth >= 3:
        check_cut(model, [depth // 3, depth - 1], longest)
    note(model, _WHOLE, True, len(longest))


def not_numbers(model: PreTrainedModel) -> LaminaError:
    """What to say of a model whose logits are NaN before anything is removed."""
    return LaminaError(
        f"{type(model).__name__} ({model.config.name_or_path}) yields logits that are not numbers (NaN) on this "
        "calibration, before anything is removed. Try `dtype: float32` or `bfloat16` under its models entry; if that "
        "does not help, its weights are damaged."
    )


def _looks_ahead(model: PreTrainedModel, ids: Sequence[int]) -> float:
    """How far the logits of tokens move when the tokens behind them change."""
    last = max(1, len(ids) // 2)
    changed = [*ids[:-last], *reversed(ids[:last])]
    moved, whole = (logits(model, row, len(ids))[:-last] for row in (changed, ids))
    return distance(moved, whole, model.dtype)


def check_cut(model: PreTrainedModel, gone: Sequence[int], ids: Sequence[int]) -> None:
    """Refuse to cut layers if this differs from bypassing them; each set of layers is checked once.

    Raises LaminaError, which says by how much.
    """
    what = f"cut by {list(gone)}"
    if not gone or finding(model, what, len(ids)):
        return
    last, most = places(model, ids), tolerance(model)
    before = ", ".join(map(str, gone[:-1]))
    named = f"layers {before} and {gone[-1]}" if before else f"layer {gone[-1]}"
    cannot = f"the model family '{text_config(model).model_type}' cannot be cut: without {named}"
    with refused(f"{cannot} it does not run"):
        [wanted] = without(model, ids, last, [frozenset(gone)])
        far = distance(
            logits(remove(share(model), [str(layer) for layer in gone]), ids, last),
            wanted,
            model.dtype,
        )
    if far > most:
        raise LaminaError(
            f"{cannot} it is another model than one that passes them by (by {far:.2g} of the "
            f"spread of its logits; {most:g} would be rounding in {str(model.dtype).removeprefix('torch.')}). Its "
            "layers depend on their number, on the depth or on each other."
        )
    note(model, what, True, len(ids))


def probe(model: PreTrainedModel) -> list[int]:
    """Some tokens that mean nothing special."""
    config = text_config(model)
    named = [value for name, value in vars(config).items() if name.endswith("token_id")]
    # Llama 3 and GLM have several tokens that end a text.
    special = {
        each for value in named for each in (value if isinstance(value, (list, tuple)) else [value])
    }
    return [
        n
        for n in (7 * place % min(config.vocab_size, 5000) for place in range(3, 40))
        if n not in special
    ][:24]


def finding(model: PreTrainedModel, what: str, tokens: int = 0) -> Any | None:
    """The value found under a name for texts of at least this number of tokens; None if there is none."""
    known = _findings.get(model, {}).get(what, {"tokens": -1})
    return known["value"] if known["tokens"] >= tokens else None


def note(model: PreTrainedModel, what: str, value: Any, tokens: int = 0) -> None:
    """Store a value, which JSON can hold, under a name. A finding on longer texts stays."""
    if finding(model, what, tokens) is None:
        _findings.setdefault(model, {})[what] = {"tokens": tokens, "value": value}


def findings(model: PreTrainedModel, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All findings on a model, with the conditions under which they hold."""
    return {"conditions": _conditions(model, manifest), "findings": _findings.get(model, {})}


def use_findings(
    model: PreTrainedModel, manifest: Mapping[str, Any], check: Mapping[str, Any]
) -> None:
    """Begin with the findings that `findings` gave, if their conditions are those of this model."""
    if check["conditions"] == _conditions(model, manifest):
        _findings[model] = {name: dict(known) for name, known in check["findings"].items()}


def _conditions(model: PreTrainedModel, manifest: Mapping[str, Any]) -> dict[str, Any]:
    places = sorted({str(devices.place_of(layer)) for layer in layers_of(model)})
    return {
        **{name: manifest[name] for name in ("weights_sha256", "settings_sha256")},
        "dtype": str(model.dtype),
        "attention": getattr(model.config, "_attn_implementation", None),
        "devices": [
            torch.cuda.get_device_name(place) if place.startswith("cuda") else place
            for place in places
        ],
    }
