"""Activation patching: where in the stream the model knows what tells two prompts apart.

A clean and a corrupt prompt of equal length have different answers; LD is the logit of the right one less that of the
foil. The stream of the clean run replaces that of the corrupt run at a boundary and some positions. The recovered share
is (LD_patched - LD_corrupt) / (LD_clean - LD_corrupt). The reverse puts the corrupt stream into the clean run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lamina.config.configuration import Diagnosis
from lamina.config.entry import Place, option
from lamina.data import files
from lamina.data.splitting import documents
from lamina.errors import LaminaError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Patching(Diagnosis):
    """Where in the stream the difference between two prompts sits that makes the model answer them differently.

    One line of the file is a pair of prompts with equally many tokens:
    `{"clean": "zaro lives in", "corrupt": "baro lives in", "right": "maple", "foil": "pine"}`.
    """

    FILED = True

    kind: Literal["patching"] = "patching"
    file: Place = option(
        "A .jsonl file of your own with `clean`, `corrupt`, `right` and `foil` in each line."
    )
    least: float = option("Pairs that the model tells apart by fewer nats are left out.", 1.0, gt=0)


PLACES = ("changed", "between", "last")


@dataclass(frozen=True)
class Pair:
    """Two prompts of equal length, and the first tokens of the answers to the clean and to the corrupt one."""

    clean: tuple[int, ...]
    corrupt: tuple[int, ...]
    right: int
    foil: int


def read(path: Path, tokenizer: PreTrainedTokenizerBase, options: Patching) -> list[Pair]:
    """Pairs from a file of JSON lines.

    Raises LaminaError as for `lamina.data.files.pairs`, and if prompts differ in length or answers begin alike.
    """
    from lamina.data.calibrations import encode

    pairs = []
    for at, line in files.pairs(path, "diagnosis patching, file"):
        clean, corrupt = (encode(tokenizer, line[key]) for key in ("clean", "corrupt"))
        if (one := len(clean)) != (other := len(corrupt)):
            remedy = "Write prompts of equally many tokens."
            raise LaminaError(f"{at}: `clean` has {one} tokens and `corrupt` {other}. {remedy}")
        # The tokens of an answer are those behind the prompt's own, when both are encoded together.
        right, foil = (
            encode(tokenizer, f"{line['clean']} {line[key].strip()}")[one:]
            for key in ("right", "foil")
        )
        if not right or not foil or right[0] == foil[0]:
            raise LaminaError(
                f"{at}: `right` and `foil` begin with the same token. Write answers that differ at once."
            )
        pairs.append(Pair(tuple(clean), tuple(corrupt), right[0], foil[0]))
    return pairs


def diagnose(
    model: PreTrainedModel, given: Sequence[Pair], options: Patching, tokens: int
) -> list[dict[str, Any]]:
    """Rows of table `diagnoses` for the boundaries 0 … L-1, `layer` being the boundary that was patched.

    `recovery_changed`, `recovery_between`, `recovery_last` : mean share of LD that comes back when the clean stream
        stands at the positions where the prompts differ, at the other positions after the first of these, or at the
        last position. At all positions the share would be 1.
    `noise_…` : share of LD that the corrupt stream takes away in the clean run.
    `usable` : share of pairs whose LD differ by `least` nats or more; the others are left out. Layer null.

    The control is the recovery with the clean stream of another pair of the same length.

    Raises LaminaError if no pair is usable.
    """
    import numpy as np

    from lamina.models.structure import layers_of
    from lamina.relevance.statistics import ratios

    depth = len(layers_of(model))
    shares = np.zeros((2, len(PLACES), len(given), depth))
    controls = np.full((len(PLACES), len(given), depth), np.nan)
    usable = np.zeros(len(given))
    for group in _groups(given, tokens):
        gap, recovered, noised, other = _measure(model, [given[number] for number in group])
        usable[group] = gap >= options.least
        shares[0, :, group], shares[1, :, group] = recovered, noised
        if len(group) > 1:
            controls[:, group] = other.swapaxes(0, 1)
    if not usable.any():
        raise LaminaError(
            f"diagnosis patching: the model tells none of the {len(given)} pairs apart by {options.least} nats. Write "
            "pairs that it answers, or a smaller `least`."
        )
    kept = usable > 0
    copies = np.array(documents([[(*pair.clean, *pair.corrupt) for pair in given]])[0])
    rows: list[dict[str, Any]] = [
        {"measure": "usable", **ratios(usable[:, None], np.ones(len(given)), copies)[0]}
    ]
    for place, name in enumerate(PLACES):
        for direction, part in zip(("recovery", "noise"), shares[:, place, kept], strict=True):
            for layer, row in enumerate(ratios(part, usable[kept], copies[kept])):
                rows.append({"layer": layer, "measure": f"{direction}_{name}", **row})
                beside = controls[place, kept, layer]
                if direction == "recovery" and not np.isnan(beside).all():
                    rows[-1]["control"] = float(np.nanmean(beside))
    return rows


def _groups(given: Sequence[Pair], tokens: int) -> Iterator[list[int]]:
    """Groups of pairs of one length within the budget `tokens`; pairs of a group lend each other their streams."""
    for length in sorted({len(pair.clean) for pair in given}, reverse=True):
        alike = [number for number, pair in enumerate(given) if len(pair.clean) == length]
        size = max(2, tokens // length)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def _measure(model: PreTrainedModel, pairs: Sequence[Pair]) -> list[np.ndarray]:
    """LD of the clean less the corrupt prompts of one length, (pairs,), and three shares of it with one boundary
    patched at `PLACES`, (pairs, places, L): what the clean stream gives back, what the corrupt one takes away, and what
    the clean stream of another pair gives back.
    """
    import torch

    from lamina.engine import taps
    from lamina.engine.batches import padded
    from lamina.models.structure import layers_of

    clean, real = padded([pair.clean for pair in pairs], model.device)
    corrupt, _ = padded([pair.corrupt for pair in pairs], model.device)
    answers = torch.tensor([(pair.right, pair.foil) for pair in pairs], device=model.device)

    @torch.no_grad()
    def difference(ids: torch.Tensor) -> torch.Tensor:
        logits = model(
            input_ids=ids, attention_mask=real.long(), use_cache=False, logits_to_keep=1
        ).logits[:, -1]
        chosen = logits.double().gather(1, answers)
        return chosen[:, 0] - chosen[:, 1]

    layers = layers_of(model)
    with taps.tapped(model, range(len(layers))) as (streams, _):
        of_clean, from_clean = difference(clean), dict(streams)
        of_corrupt, from_corrupt = difference(corrupt), dict(streams)

    def patched(
        ids: torch.Tensor, given: dict[float, torch.Tensor], where: torch.Tensor
    ) -> torch.Tensor:
        differences = []
        for number, layer in enumerate(layers):
            with _replaced(layer, given[number], where):
                differences.append(difference(ids))
        return torch.stack(differences, 1)

    places = _places(clean, corrupt)
    rolled = {number: stream.roll(1, 0) for number, stream in from_clean.items()}
    gap = of_clean - of_corrupt
    shares = (
        [(patched(ids, given, where) - start[:, None]) / change[:, None] for where in places]
        for ids, given, start, change in (
            (corrupt, from_clean, of_corrupt, gap),
            (clean, from_corrupt, of_clean, -gap),
            (corrupt, rolled, of_corrupt, gap),
        )
    )
    return [gap.cpu().numpy(), *(torch.stack(share, 1).cpu().numpy() for share in shares)]


def _places(clean: torch.Tensor, corrupt: torch.Tensor) -> list[torch.Tensor]:
    """Masks (pairs, T) of `PLACES`."""
    changed = clean != corrupt
    last = changed.new_zeros(changed.shape)
    last[:, -1] = True
    after = changed.cumsum(1) > 0
    return [changed & ~last, after & ~changed & ~last, last]


def _replaced(layer: nn.Module, stream: torch.Tensor, where: torch.Tensor) -> RemovableHandle:
    """While open, `stream` (pairs, T, C) enters the layer at the positions `where` (pairs, T)."""

    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        entering = args[0] if args else kwargs["hidden_states"]
        mixed = stream.to(entering.device).where(where[..., None].to(entering.device), entering)
        return ((mixed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": mixed})

    return layer.register_forward_pre_hook(hook, with_kwargs=True)
