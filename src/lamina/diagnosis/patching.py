"""Activation patching: where in the stream the model holds what distinguishes two prompts.

A clean and a corrupt prompt of equal length have different answers. LD is the logit of the right
answer minus that of the foil. At one boundary and some positions, the stream of the clean run
replaces that of the corrupt run; the recovered share is (LD_patched - LD_corrupt) / (LD_clean -
LD_corrupt). The reverse, noising, puts the corrupt stream into the clean run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lamina.data import files
from lamina.data.splitting import index_documents
from lamina.diagnosis.rows import DiagnosisRow, make_row
from lamina.errors import LaminaError
from lamina.options.diagnoses import Diagnosis
from lamina.options.entry import UserPath, option

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.hooks import RemovableHandle
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from lamina.relevance.statistics import EstimateRow


class Patching(Diagnosis):
    """Where in the stream the difference between two prompts sits.

    It makes the model answer them differently.

    One line of the file is a pair of prompts with equally many tokens:
    `{"clean": "zaro lives in", "corrupt": "baro lives in", "right": "maple", "foil": "pine"}`.
    """

    FILED = True

    kind: Literal["patching"] = "patching"
    file: UserPath = option(
        "A .jsonl file of your own with `clean`, `corrupt`, `right` and `foil` in each line."
    )
    least: float = option("Pairs that the model tells apart by fewer nats are left out.", 1.0, gt=0)


# The sets of positions that are patched: where the prompts differ, all others after the first
# difference, and the last one.
POSITION_SETS = ("changed", "between", "last")


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal length, and the first token of the answer to each."""

    clean: tuple[int, ...]
    corrupt: tuple[int, ...]
    right: int
    foil: int


def read_samples(
    path: Path, tokenizer: PreTrainedTokenizerBase, options: Patching
) -> list[PromptPair]:
    """Pairs from a file of JSON lines.

    Raises LaminaError as `lamina.data.files.read_pairs` does, and if the prompts of a pair differ
    in length or its answers begin alike.
    """
    lines = files.read_pairs(path, "diagnosis patching, file")
    return [_encode_pair(location, line, tokenizer) for location, line in lines]


def _encode_pair(
    location: str, line: Mapping[str, str], tokenizer: PreTrainedTokenizerBase
) -> PromptPair:
    from lamina.data.calibrations import encode_document

    clean_ids = encode_document(tokenizer, line["clean"])
    corrupt_ids = encode_document(tokenizer, line["corrupt"])
    if len(clean_ids) != len(corrupt_ids):
        raise LaminaError(
            f"{location}: `clean` has {len(clean_ids)} tokens and `corrupt` {len(corrupt_ids)}. "
            "Write two prompts with the same number of tokens."
        )
    # The answer is encoded together with the prompt; its tokens are those after the prompt's.
    right_ids = encode_document(tokenizer, f"{line['clean']} {line['right'].strip()}")[
        len(clean_ids) :
    ]
    foil_ids = encode_document(tokenizer, f"{line['clean']} {line['foil'].strip()}")[
        len(clean_ids) :
    ]
    if not right_ids or not foil_ids or right_ids[0] == foil_ids[0]:
        raise LaminaError(
            f"{location}: `right` and `foil` begin with the same token. Write answers whose first "
            "tokens differ."
        )
    return PromptPair(tuple(clean_ids), tuple(corrupt_ids), right_ids[0], foil_ids[0])


def diagnose(
    model: PreTrainedModel, samples: Sequence[PromptPair], options: Patching, token_budget: int
) -> list[DiagnosisRow]:
    """Rows for the boundaries 0 … L-1, `layer` being the boundary that was patched.

    `recovery_changed`, `recovery_between`, `recovery_last` : mean share of LD that the clean stream
        recovers at the positions where the prompts differ, at the other positions after the first
        of these, or at the last position. At all positions together the share would be 1.
    `noise_…` : share of LD that the clean run loses to the corrupt stream.
    `usable` : share of pairs whose LD differ by `least` nats or more; the others are left out.
        Layer null.

    The control is the recovery with the clean stream of another pair of the same length.

    Raises LaminaError if no pair is usable, or if one is longer than the model's context.
    """
    import numpy as np

    from lamina.models.checkpoint import check_fits, stated_context
    from lamina.relevance.statistics import bootstrap_ratios

    longest = max(len(pair.clean) for pair in samples)
    model_context = stated_context(model.config.to_dict())
    check_fits("diagnosis patching, file", longest, model_context, str(model.config.name_or_path))
    patching_shares = measure_shares(model, samples, token_budget)
    is_usable = patching_shares.logit_gap >= options.least
    if not is_usable.any():
        raise LaminaError(
            f"diagnosis patching: the model tells none of the {len(samples)} pairs apart by "
            f"{options.least} nats. Write pairs that the model answers right, or a smaller `least`."
        )
    (document_list,) = index_documents([[(*pair.clean, *pair.corrupt) for pair in samples]])
    document_indices = np.array(document_list)

    usable_flags = is_usable.astype(float)[:, None]
    (usable_share,) = bootstrap_ratios(usable_flags, np.ones(len(samples)), document_indices)
    diagnosis_rows = [make_row("usable", usable_share)]
    used_documents = document_indices[is_usable]
    for index, positions in enumerate(POSITION_SETS):
        recovery_estimates = _average(patching_shares.recovered[is_usable, index], used_documents)
        control_shares = patching_shares.recovered_from_other[is_usable, index]
        for layer, estimate in enumerate(recovery_estimates):
            control = _mean_of_known(control_shares[:, layer])
            diagnosis_rows.append(make_row(f"recovery_{positions}", estimate, layer, control))
        noise_estimates = _average(patching_shares.noised[is_usable, index], used_documents)
        for layer, estimate in enumerate(noise_estimates):
            diagnosis_rows.append(make_row(f"noise_{positions}", estimate, layer))
    return diagnosis_rows


def _average(shares: np.ndarray, document_indices: np.ndarray) -> list[EstimateRow]:
    """The mean of shares (pairs, L) over pairs, with its interval, for each layer."""
    import numpy as np

    from lamina.relevance.statistics import bootstrap_ratios

    return bootstrap_ratios(shares, np.ones(len(shares)), document_indices)


def _mean_of_known(values: np.ndarray) -> float | None:
    """The mean of the values that are not NaN; None if there are none."""
    import numpy as np

    return None if np.isnan(values).all() else float(np.nanmean(values))


@dataclass(frozen=True)
class PatchingShares:
    """What patching one boundary changes, as shares of LD: (pairs, `POSITION_SETS`, L)."""

    logit_gap: np.ndarray  # (pairs,): LD of the clean minus that of the corrupt prompt
    recovered: np.ndarray  # by the clean stream in the corrupt run
    noised: np.ndarray  # lost to the corrupt stream in the clean run
    recovered_from_other: np.ndarray  # by another pair's clean stream; NaN without such a pair


def measure_shares(
    model: PreTrainedModel, pairs: Sequence[PromptPair], token_budget: int
) -> PatchingShares:
    """Patch every pair, in batches of one length within `token_budget`."""
    import numpy as np

    from lamina.models.structure import layers_of

    shape = (len(pairs), len(POSITION_SETS), len(layers_of(model)))
    patching_shares = PatchingShares(
        np.zeros(len(pairs)), np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    )
    for group in _group_by_length(pairs, token_budget):
        batch = PairBatch(model, [pairs[index] for index in group])
        patching_shares.logit_gap[group] = batch.logit_gap.cpu().numpy()
        patching_shares.recovered[group] = batch.recover(batch.clean_streams)
        patching_shares.noised[group] = batch.add_noise()
        if len(group) > 1:
            other_streams = {
                layer: stream.roll(1, 0) for layer, stream in batch.clean_streams.items()
            }
            patching_shares.recovered_from_other[group] = batch.recover(other_streams)
    return patching_shares


def _group_by_length(pairs: Sequence[PromptPair], token_budget: int) -> Iterator[list[int]]:
    """Groups of pairs of one length, by index.

    Where possible, a group has at least two pairs, since each is the control of another.
    """
    for length in sorted({len(pair.clean) for pair in pairs}, reverse=True):
        same_length = [index for index, pair in enumerate(pairs) if len(pair.clean) == length]
        group_size = max(2, token_budget // length)
        for start in range(0, len(same_length), group_size):
            yield same_length[start : start + group_size]


class PairBatch:
    """Pairs of prompts of one length, and both runs of the model without a patch."""

    def __init__(self, model: PreTrainedModel, pairs: Sequence[PromptPair]) -> None:
        import torch

        from lamina.engine.batches import pad_sequences
        from lamina.engine.taps import tap_boundaries
        from lamina.models.structure import layers_of

        self.model = model
        self.layers = layers_of(model)
        answer_ids = [(pair.right, pair.foil) for pair in pairs]
        self.answer_ids = torch.tensor(answer_ids, device=model.device)  # (pairs, 2)
        self.clean_ids, self.is_real = pad_sequences([pair.clean for pair in pairs], model.device)
        self.corrupt_ids, _ = pad_sequences([pair.corrupt for pair in pairs], model.device)

        with tap_boundaries(model, range(len(self.layers))) as streams:
            self.clean_difference = self.logit_difference(self.clean_ids)
            self.clean_streams: dict[float, torch.Tensor] = dict(streams)  # (pairs, T, C) each
            self.corrupt_difference = self.logit_difference(self.corrupt_ids)
            self.corrupt_streams: dict[float, torch.Tensor] = dict(streams)
        self.logit_gap = self.clean_difference - self.corrupt_difference  # (pairs,)

    def logit_difference(self, token_ids: torch.Tensor) -> torch.Tensor:
        """LD of each prompt (pairs, T) in float64, (pairs,)."""
        import torch

        with torch.no_grad():
            output = self.model(
                input_ids=token_ids,
                attention_mask=self.is_real.long(),
                use_cache=False,
                logits_to_keep=1,
            )
        answer_logits = output.logits[:, -1].double().gather(1, self.answer_ids)
        return answer_logits[:, 0] - answer_logits[:, 1]

    def recover(self, streams: Mapping[float, torch.Tensor]) -> np.ndarray:
        """The share of LD that `streams` recover in the corrupt run, (pairs, position sets, L)."""
        return self._patch(self.corrupt_ids, streams, self.corrupt_difference, self.logit_gap)

    def add_noise(self) -> np.ndarray:
        """The share of LD that the clean run loses to the corrupt streams.

        Its shape is (pairs, position sets, L).
        """
        return self._patch(
            self.clean_ids, self.corrupt_streams, self.clean_difference, -self.logit_gap
        )

    def _patch(
        self,
        token_ids: torch.Tensor,
        streams: Mapping[float, torch.Tensor],
        unpatched_difference: torch.Tensor,
        logit_gap: torch.Tensor,
    ) -> np.ndarray:
        """(LD_patched - LD_unpatched) / gap for every set of positions and every boundary."""
        import torch

        recovered_shares = []
        for positions in _position_masks(self.clean_ids, self.corrupt_ids):
            differences = []
            for layer_index, layer in enumerate(self.layers):
                with _patch_input(layer, streams[layer_index], positions):
                    differences.append(self.logit_difference(token_ids))
            patched_difference = torch.stack(differences, 1)
            recovered_shares.append(
                (patched_difference - unpatched_difference[:, None]) / logit_gap[:, None]
            )
        return torch.stack(recovered_shares, 1).cpu().numpy()


def _position_masks(clean_ids: torch.Tensor, corrupt_ids: torch.Tensor) -> list[torch.Tensor]:
    """Masks (pairs, T) of the `POSITION_SETS`."""
    is_changed = clean_ids != corrupt_ids
    is_last = is_changed.new_zeros(is_changed.shape)
    is_last[:, -1] = True
    is_after_change = is_changed.cumsum(1) > 0
    is_between = is_after_change & ~is_changed & ~is_last
    return [is_changed & ~is_last, is_between, is_last]


def _patch_input(
    layer: nn.Module, stream: torch.Tensor, positions: torch.Tensor
) -> RemovableHandle:
    """A handle: while it is open, `stream` (pairs, T, C) enters the layer.

    It replaces the layer's input at the positions of a mask (pairs, T).
    """

    def mix(entering: torch.Tensor) -> torch.Tensor:
        is_replaced = positions[..., None].to(entering.device)
        return stream.to(entering.device).where(is_replaced, entering)

    def replace_input(
        layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # Families pass the input by position or by name.
        if args:
            return (mix(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": mix(kwargs["hidden_states"])}

    return layer.register_forward_pre_hook(replace_input, with_kwargs=True)
