"""Checks a model against itself: against plain forward passes in which layers are bypassed.

A bypassed layer returns its input. Every number of lamina assumes that cutting the layer has the
same effect. Sweeps, cut models and exports remove layers in other ways, so each of them is compared
with the logits computed here before it is trusted.

A finding on a model in memory is stored with the length of the texts for which it holds, so that
nothing is checked twice. Rule check_model writes the findings on a model into check.json. A job
that loads the same model in the same way starts with them, and only checks what they leave open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from lamina.errors import LaminaError
from lamina.models import devices
from lamina.models.boundary import share_weights
from lamina.models.structure import layers_of, stream_of, text_config
from lamina.models.surgery import apply_edits, source_layers
from lamina.models.units import Exchange, Repetition, parse_edit, removals_among

ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Largest `logit_distance` that rounding explains, by the model's dtype. Others have `COARSE`."""
COARSE = 0.1

# Tokens of the text on which a model is checked: at least (if there is such a text) and at most.
_SHORTEST_TEXT = 16
_LONGEST_TEXT = 64
# Logits of a row that are compared at a time. This limits memory for a vocabulary of 262,144.
_COMPARED_LOGITS = 1 << 21
_COMPUTED_LOGITS = 1 << 27  # at a time: 256 MiB in bfloat16
_LONG_TEXT_LAYERS = 5  # fewer may hide errors that add up over layers
_CAUSAL = "causal, and can be cut"  # the name of the finding of `check`


class Finding(TypedDict):
    """What a check found on a model."""

    tokens: int  # the longest text for which it holds
    value: Any  # which JSON can hold


_findings: "WeakKeyDictionary[PreTrainedModel, dict[str, Finding]]" = WeakKeyDictionary()


def tested_removals(model: PreTrainedModel) -> list[int]:
    """Layers whose removal is tested: an early and a late one, and one of each other kind."""
    depth = len(layers_of(model))
    return _add_other_kinds(model, sorted({depth // 3, depth - 1}))


def long_text_layers(model: PreTrainedModel) -> list[int]:
    """Layers for long texts in a proof: five from first to last, and one of each other kind.

    What a model does beyond some length (a window, a chunk) depends on the kind of a layer.
    """
    last_layer = len(layers_of(model)) - 1
    n_steps = _LONG_TEXT_LAYERS - 1
    spread = {step * last_layer // n_steps for step in range(_LONG_TEXT_LAYERS)}
    return sorted(_add_other_kinds(model, sorted(spread)))


def _add_other_kinds(model: PreTrainedModel, layer_indices: list[int]) -> list[int]:
    """These layers, and the first layer of each kind that is not among them."""
    layers = layers_of(model)
    layer_types = getattr(text_config(model), "layer_types", None) or [None] * len(layers)
    kinds: list[tuple[str | None, set[type[nn.Module]]]] = []
    for layer_type, layer in zip(layer_types, layers, strict=True):
        kinds.append((layer_type, {type(module) for module in layer.modules()}))

    chosen = list(layer_indices)
    for layer_index, kind in enumerate(kinds):
        if all(kinds[chosen_index] != kind for chosen_index in chosen):
            chosen.append(layer_index)
    return chosen


def skipped_layers(model: PreTrainedModel) -> list[int]:
    """Layers that long texts skip in a proof."""
    run_layers = set(long_text_layers(model))
    return [layer for layer in range(len(layers_of(model))) if layer not in run_layers]


def shallow_model(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its `skipped_layers`; itself if there is none."""
    skipped = skipped_layers(model)
    if not skipped:
        return model
    return apply_edits(share_weights(model), [str(layer) for layer in skipped])


@contextmanager
def refusing_errors(saying: str) -> Iterator[None]:
    """Turn any error of a model's code into a LaminaError.

    An out-of-memory error is not the model's fault, and passes through.
    """
    try:
        yield
    except (LaminaError, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:  # a family's code can raise anything
        raise LaminaError(f"{saying} ({type(error).__name__}: {error}).") from error


def shorten_sequence(sequences: Sequence[Sequence[int]]) -> Sequence[int]:
    """The sequence on which a model is checked, cut to at most 64 tokens.

    It is the shortest one of at least 16 tokens, or the longest if there is none.
    """
    by_length = sorted(sequences, key=len)
    for token_ids in by_length:
        if len(token_ids) >= _SHORTEST_TEXT:
            return token_ids[:_LONGEST_TEXT]
    return by_length[-1][:_LONGEST_TEXT]


def compared_positions(model: PreTrainedModel, ids: Sequence[int]) -> int:
    """How many last positions of a row are compared: half of them, and at most 64.

    A large vocabulary allows fewer.
    """
    most_rows = _COMPARED_LOGITS // text_config(model).vocab_size
    return max(1, min(_LONGEST_TEXT, len(ids) // 2, most_rows))


def last_logits(model: PreTrainedModel, ids: Sequence[int], last: int) -> torch.Tensor:
    """Logits of the last positions of one row, run alone: (last, V)."""
    return logits_without_layers(model, ids, last, [frozenset()])[0]


@contextmanager
def score_only(model: PreTrainedModel, places: slice) -> Iterator[None]:
    """While open, the LM head computes only the positions in the slice `places`.

    This lets long rows fit into memory.
    """
    head = model.get_output_embeddings()
    if head is None:
        yield
        return

    def cut_input(module: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
        return (args[0][:, places],) if args[0].dim() == 3 else None

    with head.register_forward_pre_hook(cut_input):
        yield


@torch.inference_mode()
def logits_without_layers(
    model: PreTrainedModel, ids: Sequence[int], last: int, bypassed: Sequence[frozenset[int]]
) -> torch.Tensor:
    """Logits (len(bypassed), last, V) of one row where the layers of each set are bypassed."""
    n_rows = max(1, _COMPUTED_LOGITS // (last * text_config(model).vocab_size))
    chunks: list[torch.Tensor] = []
    for start in range(0, len(bypassed), n_rows):
        layer_sets = bypassed[start : start + n_rows]
        rows = torch.tensor([ids], device=model.device).expand(len(layer_sets), -1)
        with _bypassing(layers_of(model), layer_sets), score_only(model, slice(-last, None)):
            row_logits = model(input_ids=rows, use_cache=False).logits
        chunks.append(row_logits[:, -last:].clone())
    return torch.cat(chunks)


@contextmanager
def _bypassing(layers: Iterable[nn.Module], layer_sets: Sequence[frozenset[int]]) -> Iterator[None]:
    """While open, row n of a batch bypasses the layers in layer_sets[n]."""
    with ExitStack() as hooks:
        for layer_index, layer in enumerate(layers):
            rows = [row for row, layer_set in enumerate(layer_sets) if layer_index in layer_set]
            if rows:
                bypass = _Bypass(rows)
                hooks.enter_context(
                    layer.register_forward_pre_hook(bypass.keep_input, with_kwargs=True)
                )
                hooks.enter_context(layer.register_forward_hook(bypass.restore_input))
        yield


class _Bypass:
    """Hooks that make some rows of a batch leave a layer as they entered it."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows
        self._inputs: list[torch.Tensor] = []  # of the call that is running

    def keep_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the rows of the stream that enters the layer."""
        stream = args[0] if args else next(iter(kwargs.values()))
        # A copy, since a layer may add to its input in place.
        self._inputs = [stream[self.rows].clone()]

    def restore_input(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Put those rows into the stream that leaves the layer."""
        is_stream = isinstance(output, torch.Tensor)
        stream = (output if is_stream else output[0]).clone()
        stream[self.rows] = self._inputs.pop().to(stream.device)
        return stream if is_stream else type(output)((stream, *output[1:]))


def dtype_tolerance(model: PreTrainedModel) -> float:
    """The largest `logit_distance` that rounding explains in the dtype of a model."""
    return ROUNDING.get(model.dtype, COARSE)


def logit_distance(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> float:
    """How far logits `found` (positions, V) are from `wanted`.

    The distance is relative to how far `wanted` is from its mean. It is the largest over positions;
    in 16 bits it is the median, because rounding sometimes routes a token to another expert. At a
    position where only one of the two is finite, it is infinite.
    """
    found = found.float()
    wanted = wanted.float().to(found.device)
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm(dim=-1).clamp_min(1e-30)
    distances = (found - wanted).norm(dim=-1) / spread

    is_finite = found.isfinite().all(-1) | wanted.isfinite().all(-1)
    distances = torch.where(is_finite, distances, 0).nan_to_num(torch.inf)
    return float(distances.max() if dtype in ROUNDING else distances.median())


def check_model(model: PreTrainedModel, ids: Sequence[int], longest: Sequence[int]) -> None:
    """Refuse a model that is not causal, or whose layers cannot be cut.

    Logits must not depend on later tokens, and must be the same whether layers are cut or bypassed.
    Both are checked on the longest row, because windows and chunks have no effect on shorter rows,
    and some rotary embeddings depend on the length of a text. One pass runs through all layers, the
    others through those of `long_text_layers`.

    Raises LaminaError that says which check fails, and by how much.
    """
    if read_finding(model, _CAUSAL, len(longest)):
        return
    depth = len(layers_of(model))
    if depth >= 3:
        tested_layers = skipped_layers(model) or [depth // 3, depth - 1]
        check_edits(model, list(map(str, tested_layers)), longest)
    # Leave out the second half, then only the last token: if a model keeps the best tokens, its
    # logits may change anywhere.
    shallow = shallow_model(model)
    for n_left_out in (compared_positions(model, longest), 1):
        _check_causal(shallow, ids, longest, n_left_out)
    store_finding(model, _CAUSAL, True, len(longest))


def _check_causal(
    model: PreTrainedModel, ids: Sequence[int], longest: Sequence[int], n_left_out: int
) -> None:
    """Refuse a model whose logits depend on the last tokens of a row."""
    most = dtype_tolerance(model)
    before = last_logits(model, longest[:-n_left_out] or ids, compared_positions(model, longest))
    again = last_logits(model, longest, n_left_out + len(before))[: len(before)]
    far = logit_distance(before, again, model.dtype)
    if far <= most:
        return

    # With damaged weights, the length of a row may determine which logits are NaN.
    if before.isnan().any() or again.isnan().any():
        raise not_numbers(model)
    family = text_config(model).model_type
    ahead = _distance_with_other_ending(model, ids)
    if ahead > most:
        raise LaminaError(
            f"the model family '{family}' is not causal: another ending of a text changes the "
            f"logits of the tokens before it (by {ahead:.2g} of their spread). lamina needs a "
            "causal decoder, which predicts each token from those before."
        )
    raise LaminaError(
        f"the model family '{family}' gives the same tokens different logits in a text of "
        f"{len(longest)} tokens than in a shorter one (by {far:.2g} of their spread): a result "
        "would depend on the other texts of a batch, or on the text around it. Calibrate on "
        "shorter texts."
    )


def _distance_with_other_ending(model: PreTrainedModel, ids: Sequence[int]) -> float:
    """How far the logits of tokens move when the tokens after them change."""
    n_changed = max(1, len(ids) // 2)
    changed_ids = [*ids[:-n_changed], *reversed(ids[:n_changed])]
    moved = last_logits(model, changed_ids, len(ids))[:-n_changed]
    unchanged = last_logits(model, ids, len(ids))[:-n_changed]
    return logit_distance(moved, unchanged, model.dtype)


def not_numbers(model: PreTrainedModel) -> LaminaError:
    """The error on a model whose logits are NaN before anything is removed."""
    return LaminaError(
        f"{type(model).__name__} ({model.config.name_or_path}) gives logits that are NaN on this "
        "calibration, before anything is removed. Try `dtype: float32` or `bfloat16` in its entry "
        "under `models`; if that does not help, its weights are damaged."
    )


def check_edits(model: PreTrainedModel, edits: Iterable[str], ids: Sequence[int]) -> None:
    """Refuse edits unless the edited model equals the model with its layers run in edited order.

    Each order is checked once. Removed sub-layers, damping and layers of other models are not
    checked here.

    Raises LaminaError that says how much they differ.
    """
    moves: list[str] = []
    for edit in map(parse_edit, edits):
        if isinstance(edit, Repetition):
            moves.append(str(edit._replace(is_damped=False)))
        elif isinstance(edit, Exchange):
            moves.append(str(edit))
    kept = source_layers(model, [*removals_among(edits), *moves])
    removed = [layer for layer in range(len(layers_of(model))) if layer not in kept]
    what = f"edited by {[*removed, *moves]}"
    if not removed and not moves or read_finding(model, what, len(ids)):
        return
    family = text_config(model).model_type
    if moves:
        cannot = f"the model family '{family}' cannot be edited: with {', '.join(moves)}"
    else:
        cannot = f"the model family '{family}' cannot be cut: without {_name_layers(removed)}"
    n_compared = compared_positions(model, ids)
    with refusing_errors(f"{cannot} it does not run"):
        if moves:
            expected_logits = _logits_along_path(model, ids, n_compared, kept)
        else:
            [expected_logits] = logits_without_layers(model, ids, n_compared, [frozenset(removed)])
        edited_model = apply_edits(share_weights(model), [*map(str, removed), *moves])
        edited_logits = last_logits(edited_model, ids, n_compared)
        far = logit_distance(edited_logits, expected_logits, model.dtype)

    most = dtype_tolerance(model)
    if far > most:
        dtype = str(model.dtype).removeprefix("torch.")
        raise LaminaError(
            f"{cannot} its logits are not those of the model that skips or repeats these layers "
            f"(off by {far:.2g} of their spread; {most:g} would be rounding in {dtype}). Its "
            "layers depend on their index, on the depth or on each other."
        )
    store_finding(model, what, True, len(ids))


@torch.inference_mode()
def _logits_along_path(
    model: PreTrainedModel, ids: Sequence[int], last: int, path: Sequence[int]
) -> torch.Tensor:
    """Logits (last, V) of one row that runs through these layers in this order."""
    layers = layers_of(model)
    replay = _Replay([layers[layer_index] for layer_index in path])
    with ExitStack() as hooks:
        for layer in layers:
            keep_call = layer.register_forward_pre_hook(replay.keep_call, with_kwargs=True)
            hooks.enter_context(keep_call)
        hooks.enter_context(layers[-1].register_forward_hook(replay.run))
        return last_logits(model, ids, last)


class _Replay:
    """Hooks that make the last layer return the output of a path of layers on the first input."""

    def __init__(self, path: Sequence[nn.Module]) -> None:
        self.path = path
        self._calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._first_input: torch.Tensor | None = None
        self._is_running = False

    def keep_call(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the arguments of a layer, and the stream that enters the first one."""
        if self._is_running:
            return
        stream = args[0] if args else next(iter(kwargs.values()))
        if not self._calls:
            # A copy, since a layer may add to its input in place.
            self._first_input = stream.clone()
        self._calls[layer] = args, kwargs

    def run(self, last_layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Run the path, each layer with the arguments that the model gave it."""
        if self._is_running:
            return output
        self._is_running = True
        stream = self._first_input
        for layer in self.path:
            layer_args, kwargs = self._calls[layer]
            if layer_args:
                layer_output = layer(stream, *layer_args[1:], **kwargs)
            else:
                layer_output = layer(**{**kwargs, next(iter(kwargs)): stream})
            stream = stream_of(layer_output)
        return stream if isinstance(output, torch.Tensor) else type(output)((stream, *output[1:]))


def _name_layers(layers: Sequence[int]) -> str:
    """Layers in words: `layer 1`, `layers 1, 2 and 4`."""
    *first_layers, last_layer = layers
    if not first_layers:
        return f"layer {last_layer}"
    return f"layers {', '.join(map(str, first_layers))} and {last_layer}"


def probe_sequence(model: PreTrainedModel) -> list[int]:
    """At most 24 token ids that are not special tokens."""
    config = text_config(model)
    special_ids: set[Any] = set()
    for name, value in vars(config).items():
        if name.endswith("token_id"):
            # Llama 3 and GLM have several tokens that end a text.
            special_ids.update(value if isinstance(value, (list, tuple)) else [value])

    n_candidates = min(config.vocab_size, 5000)
    token_ids = [7 * position % n_candidates for position in range(3, 40)]
    return [token_id for token_id in token_ids if token_id not in special_ids][:24]


def read_finding(model: PreTrainedModel, what: str, tokens: int = 0) -> Any | None:
    """The value stored under a name, if it holds for texts of this number of tokens; else None."""
    stored = _findings.get(model, {}).get(what)
    if stored is None or stored["tokens"] < tokens:
        return None
    return stored["value"]


def store_finding(model: PreTrainedModel, what: str, value: Any, tokens: int = 0) -> None:
    """Store a JSON value under a name, unless there is a finding on longer texts."""
    if read_finding(model, what, tokens) is None:
        _findings.setdefault(model, {})[what] = {"tokens": tokens, "value": value}


def collect_findings(model: PreTrainedModel, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """All findings on a model, with the conditions under which they hold."""
    return {"conditions": _conditions(model, manifest), "findings": _findings.get(model, {})}


def use_findings(
    model: PreTrainedModel, manifest: Mapping[str, Any], stored: Mapping[str, Any]
) -> None:
    """Start with a result of `collect_findings`, if its conditions are those of this model."""
    if stored["conditions"] == _conditions(model, manifest):
        _findings[model] = dict(stored["findings"])


def _conditions(model: PreTrainedModel, manifest: Mapping[str, Any]) -> dict[str, Any]:
    device_names: list[str] = []
    for device in sorted({str(devices.place_of(layer)) for layer in layers_of(model)}):
        is_gpu = device.startswith("cuda")
        device_names.append(torch.cuda.get_device_name(device) if is_gpu else device)
    return {
        "weights_sha256": manifest["weights_sha256"],
        "settings_sha256": manifest["settings_sha256"],
        "dtype": str(model.dtype),
        "attention": getattr(model.config, "_attn_implementation", None),
        "devices": device_names,
    }
