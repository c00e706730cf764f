"""What lamina does with a tiny model of one type, against hooks on the model that know no lamina.

Each trial ends in one of four ways: `yes` (equal), `no: reason` (refused by a LaminaError),
`WRONG: how far` (a number that is not that of the oracle, and nothing said) or `CRASH: what` (any
other exception).
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM, PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine.sweep import sweep_units
from lamina.errors import LaminaError
from lamina.healing import lora
from lamina.healing.lora import Lora
from lamina.models.boundary import Patch
from lamina.models.export import save
from lamina.models.export.check import check_cache
from lamina.models.materialise import materialise
from lamina.models.units import all_units
from tests.families.configurations import DEPTH, VOCABULARY
from tests.given.variants import random_patch, source_of

TOLERANCE = 1e-3
REMOVED_UNITS = ["0", "2"]
PAD_TOKEN = 3


class Differs(Exception):
    """Two numbers that should be equal are not."""


def text(length: int, seed: int) -> tuple[int, ...]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(4, VOCABULARY, (length,), generator=generator)
    return tuple(token_ids.tolist())


def samples() -> list[Sample]:
    """Two questions and one text.

    The answers of a question share a context longer than a window, and differ in length.
    """
    samples: list[Sample] = []
    for number in range(2):
        context = text(10 + 3 * number, number)
        answers = [text(length, 10 * number + length) for length in (1, 4, 2)]
        rows = tuple(Row(context, answer, len(answer)) for answer in answers)
        samples.append(Sample(number, "choices", number, rows, str(number)))
    token_ids = text(17, 7)
    samples.append(Sample(2, "text", 0, (Row(token_ids[:1], token_ids[1:], 16),), "2"))
    return samples


def stack(model: Any) -> list[nn.Module]:
    """The decoder's layers: of the lists of that many modules, the one that ran last in a pass."""
    module_lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    stacks = [modules for modules in module_lists if len(modules) == DEPTH]
    if not stacks:
        n_layers = model.config.num_hidden_layers
        stacks = [modules for modules in module_lists if len(modules) == n_layers]

    ran: list[nn.ModuleList] = []
    handles: list[RemovableHandle] = []
    for modules in stacks:
        for layer in modules:
            record = _record_stack(modules, ran)
            handles.append(layer.register_forward_hook(record))
    logits(model, [text(8, 0)])
    for handle in handles:
        handle.remove()

    return list(_outermost(ran)[-1])


def _record_stack(modules: nn.ModuleList, ran: list[nn.ModuleList]) -> Callable[..., None]:
    """A hook that notes the first time that a list of modules runs."""

    def record(*_: Any) -> None:
        if not any(modules is other for other in ran):
            ran.append(modules)

    return record


def _outermost(module_lists: list[nn.ModuleList]) -> list[nn.ModuleList]:
    """The lists that are not within the layers of another one."""
    outermost = list(module_lists)
    for outer in module_lists:
        outermost = [modules for modules in outermost if not _is_within(modules, outer)]
    return outermost


def _is_within(inner: nn.ModuleList, outer: nn.ModuleList) -> bool:
    return any(_contains(layer, inner) for layer in outer)


def _contains(layer: nn.Module, modules: nn.ModuleList) -> bool:
    return any(module is modules for module in layer.modules())


@torch.no_grad()
def logits(model: Any, texts: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Of texts of one length, (texts, length, V), each text alone and with nothing kept."""
    rows: list[torch.Tensor] = []
    for token_ids in texts:
        rows.append(model(input_ids=torch.tensor([token_ids]), use_cache=False).logits)
    return torch.cat(rows)


def _first_output(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def _replace_first_output(output: Any, tensor: torch.Tensor) -> Any:
    if isinstance(output, torch.Tensor):
        return tensor
    return type(output)((tensor, *output[1:]))


def _hand_input_on(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
    """A hook by which a layer gives its input as its output."""
    stream = args[0] if args else kwargs["hidden_states"]
    return _replace_first_output(output, stream)


def _add_nothing(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
    """A hook by which a sub-layer adds nothing to the stream."""
    if "residual" in inspect.signature(module.forward).parameters:
        unchanged = args[1]  # BLOOM's and MPT's add the residual themselves
    else:
        unchanged = torch.zeros_like(_first_output(output))
    return _replace_first_output(output, unchanged)


def _apply_patch(patch: Patch) -> Callable[..., Any]:
    """A hook that repairs the stream that leaves a layer, in float64."""

    def repair(module: Any, args: Any, output: Any) -> Any:
        stream = _first_output(output)
        wide = stream.double()
        repaired = wide + wide @ patch.operator.double() + patch.bias.double()
        return _replace_first_output(output, repaired.to(stream.dtype))

    return repair


@contextmanager
def bypassed(
    layers: Sequence[nn.Module], units: Sequence[str], patch: tuple[int, Patch] | None = None
) -> Iterator[None]:
    """Bypass units while open: layers hand their input on, and sub-layers add nothing.

    patch: the index of the layer that the patched stream enters, and the patch.
    """
    handles: list[RemovableHandle] = []
    for unit in units:
        layer_index, _, kind = unit.partition(".")
        layer = layers[int(layer_index)]
        if kind:
            for module in _named_sublayers(layer, kind):
                handles.append(module.register_forward_hook(_add_nothing, with_kwargs=True))
        else:
            handles.append(layer.register_forward_hook(_hand_input_on, with_kwargs=True))
    if patch is not None:
        next_layer, stream_patch = patch
        last_layer = layers[next_layer - 1]
        handles.append(last_layer.register_forward_hook(_apply_patch(stream_patch)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


SUBLAYER_NAMES = {
    "attention": r"attn|attention|mixer|mamba|conv$|temporal|lstm_layer",
    "mlp": r"mlp|moe|feed_forward|ffn|fc2",
}
OTHER_NAMES = r"norm|dropout|_input$|mlp_.*conv"


def _named_sublayers(layer: nn.Module, kind: str) -> list[nn.Module]:
    """A layer's mixers or MLPs, by their names."""
    modules: list[nn.Module] = []
    for name, module in layer.named_children():
        if re.search(SUBLAYER_NAMES[kind], name) and not re.search(OTHER_NAMES, name):
            modules.append(module)
    return modules


def close(computed: torch.Tensor, expected: torch.Tensor, label: str) -> None:
    """Raise Differs unless these are the same numbers, up to rounding."""
    if not torch.isfinite(expected).all():
        raise Differs(f"{label}: the oracle is not finite")
    difference = float((computed.double() - expected.double()).abs().max())
    # Logits of hundreds are rounded to fewer places.
    scale = max(1.0, float(expected.abs().max()) / 50)
    if not difference <= TOLERANCE * scale:
        raise Differs(f"{label} {difference:.2g}")


def scored(model: Any, rows: Sequence[Row]) -> torch.Tensor:
    """Log-likelihood of each row's continuation, one plain pass per row."""
    scores: list[torch.Tensor] = []
    for row in rows:
        token_ids = row.context + row.continuation
        logprobs = logits(model, [token_ids]).log_softmax(-1)
        predictions = logprobs[0, len(row.context) - 1 : -1]
        continuation = torch.tensor(row.continuation)[:, None]
        scores.append(predictions.gather(-1, continuation).double().sum())
    return torch.stack(scores)


def sweep(model: PreTrainedModel, folder: Path, kind: str = "layer") -> None:
    """A sweep over all units, against the model with each unit bypassed."""
    layers = stack(model)
    rows = [row for sample in samples() for row in sample.rows]
    units = all_units(len(layers), kind)
    expected_scores = {"none": scored(model, rows)}
    scores = sweep_units(model, samples(), units)
    for unit in units:
        with bypassed(layers, [unit]):
            expected_scores[unit] = scored(model, rows)
    for unit, expected in expected_scores.items():
        measured = torch.from_numpy(scores.loglikelihood[scores.index[unit]])
        close(measured, expected, f"without {unit}:")


def sublayers(model: PreTrainedModel, folder: Path) -> None:
    """Both sub-layers of each layer in sweeps, and some of each in a variant without them."""
    for kind in ("attention", "mlp"):
        sweep(model, folder, kind)
    texts = [text(12, 3), text(12, 4)]
    units = ["1.attention", "2.mlp", "3.attention"]
    with bypassed(stack(model), units):
        expected = logits(model, texts)
    close(logits(materialise(model, {"units": units}), texts), expected, "cut halves:")


def exported(
    model: PreTrainedModel,
    folder: Path,
    units: Sequence[str] = REMOVED_UNITS,
    patch: Patch | None = None,
) -> None:
    """A cut model, and its export loaded back, against the model with the layers bypassed.

    patch: repairs the stream where the first unit was.
    """
    texts = [text(12, 3), text(12, 4)]
    first_layer = int(units[0])
    boundary = (first_layer, first_layer + 1)
    has_code = patch is not None
    patches = {boundary: patch} if has_code else None
    with bypassed(stack(model), units, (boundary[1], patch) if has_code else None):
        expected = logits(model, texts)

    variant = materialise(model, {"units": list(units)}, patches)
    close(logits(variant, texts), expected, "cut:")

    (folder / "base").mkdir(exist_ok=True)
    repair = "ghost" if has_code else "none"
    source = source_of(folder / "base", list(units), repair=repair)
    save.export_variant(model, source, folder / "out", patches)
    reloaded = AutoModelForCausalLM.from_pretrained(
        folder / "out", dtype="auto", trust_remote_code=has_code
    ).eval()
    close(logits(reloaded, texts), expected, "reloaded:")
    if not has_code:
        reloaded.save_pretrained(folder / "again")


def cache(model: PreTrainedModel, folder: Path) -> None:
    """A cut model's logits token by token from a cache are those of its whole text."""
    prompt = text(8, 3)
    token_ids = torch.tensor([prompt])
    for units in ([], REMOVED_UNITS, [_last_layer_of_a_common_kind(model)]):
        variant = _prepare_generation(model, units)
        with _blaming_the_base("gives other logits from its own cache", units):
            rows, step_logits = _generate(variant, token_ids, torch.ones_like(token_ids))
            expected = logits(variant, [tuple(rows[0])])[0, len(prompt) - 1 : -1]
            close(step_logits[0], expected, f"cached without {units}:")


def _last_layer_of_a_common_kind(model: PreTrainedModel) -> str:
    """The last layer of which another one is of the same kind."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or ["all"] * len(stack(model))
    common = [index for index, kind in enumerate(kinds) if kinds.count(kind) > 1]
    return str(common[-1])


def generation(model: PreTrainedModel, folder: Path) -> None:
    """What a cut model writes from a cache is what the model with its layers bypassed predicts.

    A prompt is generated together with a longer one, and filled up in front, as lm-eval does.
    """
    prompts = [text(5, 3), text(9, 4)]
    width = len(prompts[1])
    paddings = [width - len(prompt) for prompt in prompts]
    padded_rows: list[tuple[int, ...]] = []
    mask_rows: list[list[int]] = []
    for padding, prompt in zip(paddings, prompts, strict=True):
        padded_rows.append((PAD_TOKEN,) * padding + prompt)
        mask_rows.append([0] * padding + [1] * len(prompt))
    padded_ids = torch.tensor(padded_rows)
    attention_mask = torch.tensor(mask_rows)
    for units in ([], REMOVED_UNITS):
        variant = _prepare_generation(model, units)
        with _blaming_the_base("writes other text beside a longer prompt", units):
            rows, step_logits = _generate(variant, padded_ids, attention_mask)
            with bypassed(stack(model), units):
                for index, prompt in enumerate(prompts):
                    written_text = tuple(rows[index][paddings[index] :])
                    expected = logits(model, [written_text])[0, len(prompt) - 1 : -1]
                    close(step_logits[index], expected, f"written without {units}:")


def _prepare_generation(model: PreTrainedModel, units: Sequence[str]) -> PreTrainedModel:
    """The variant, as a benchmark of written answers takes it."""
    if not units:
        return model
    variant = materialise(model, {"units": list(units)})
    check_cache(variant, model, "the variant")
    return variant


def _generate(
    model: Any, token_ids: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[list[list[int]], torch.Tensor]:
    """The rows with six tokens more, and the logits of these (rows, 6, V)."""
    outputs = model.generate(
        token_ids,
        attention_mask=attention_mask,
        max_new_tokens=6,
        min_new_tokens=6,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return outputs.sequences.tolist(), torch.stack(list(outputs.logits), dim=1)


@contextmanager
def _blaming_the_base(fault: str, units: Sequence[str]) -> Iterator[None]:
    """A fault of transformers, which the base model has, is no fault of lamina's."""
    try:
        yield
    except Exception as error:
        if units:
            raise
        if isinstance(error, Differs):
            raise LaminaError(f"the unpruned model {fault} ({error})") from error
        reason = f"{type(error).__name__}: {error}"
        raise LaminaError(f"the unpruned model does not generate ({reason})") from error


def stream_width(model: PreTrainedModel) -> int:
    """Channels of what goes from layer to layer: one or several times a token's embedding."""
    widths: list[int] = []

    def record_width(module: Any, args: Any, kwargs: Any) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        widths.append(stream.shape[-1])

    handle = stack(model)[1].register_forward_pre_hook(record_width, with_kwargs=True)
    logits(model, [text(8, 0)])
    handle.remove()
    return widths[0]


def patched(model: PreTrainedModel, folder: Path) -> None:
    """A variant with a random patch, and its export."""
    exported(model, folder, ["2"], random_patch(stream_width(model)))


def healing(model: PreTrainedModel, folder: Path) -> None:
    """An adapter with random weights, saved and merged, against the same beside the weights."""
    plan = {"units": REMOVED_UNITS}
    options = Lora(rank=2, alpha=4.0, targets="all")
    healed = lora.prepare_training(materialise(model, plan), options)
    generator = torch.Generator().manual_seed(0)
    for parameter in healed.weights.values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    lora.save(healed, folder)

    texts = [text(12, 3)]
    expected = logits(healed.model.eval(), texts)
    close(logits(materialise(model, plan, None, folder), texts), expected, "merged:")
    change = logits(materialise(model, plan), texts) - expected
    if float(change.abs().max()) < TOLERANCE:
        raise Differs("the adapter changes nothing")


_RUN: dict[str, Callable[[PreTrainedModel, Path], None]] = {
    "sweep": sweep,
    "sub-layers": sublayers,
    "patch": patched,
    "healing": healing,
    "export": exported,
    "cache": cache,
    "generation": generation,
}
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
