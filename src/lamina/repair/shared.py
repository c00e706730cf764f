"""Several repairs fitted from one pass over the unpruned model, for the plans of one selector.

The pass takes most of the time of a fit in closed form, and loading the model the rest. What the repairs collect is
collected once for those that collect the same, for as many boundaries as fit into memory; another pass over the
held-out samples checks all patches of these boundaries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import Calibration
from lamina.engine import sources as over
from lamina.engine import taps
from lamina.engine.batches import TOKENS
from lamina.engine.halving import reserve
from lamina.engine.moments import BATCH, MEMORY
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary
from lamina.models.structure import layers_of, text_config
from lamina.repair import check, fit_rows, fits, fitting, protocol
from lamina.repair.protocol import Collector, Fit
from lamina.stages.fit_runs import FitRuns


def by_key(
    job: FitRuns, model: PreTrainedModel, plans: Mapping[str, Mapping[str, Any]], read: Mapping[str, Calibration]
) -> dict[str, fits.Fits]:
    """The fits of the repairs of a job, by the key under which the job of each looks for them.

    Repairs share a pass if they are fitted on the same samples with the same weights. One that refuses the model is
    left out.

    Parameters
    ----------
    model
        The unpruned base model.
    plans
        By their files.
    read
        Calibrations by name.
    """
    sharing: dict[tuple[tuple[str, float], ...], dict[str, Wanted]] = {}
    for told, each in zip(job.fits, job.jobs, strict=True):
        ask = fitting.asked(each, (plans[file] for file in each.plans), len(layers_of(model)))
        sharing.setdefault(tuple(each.weights), {})[fits.key(told)] = Wanted(each.repair, frozenset(ask.boundaries))
    made: dict[str, fits.Fits] = {}
    for weights, asked in sharing.items():
        sources = [Source(read[name].sequences(), weight) for name, weight in weights]
        for key, boundary, fit, facts in fitted(model, sources, asked, job.seed):
            made.setdefault(key, {})[boundary] = (fit.tensors, facts)
    return made


@dataclass(frozen=True)
class Wanted:
    """One repair: its entry in the configuration, and the boundaries that it is asked for."""

    options: Any
    boundaries: frozenset[Boundary]

    @property
    def method(self) -> protocol.Repair:
        """The module of its method."""
        return protocol.method(self.options.method)

    @property
    def collected(self) -> str:
        """The name of what it collects."""
        return self.method.collected(self.options)


def fitted(
    model: PreTrainedModel, sources: Sequence[Source], asked: Mapping[str, Wanted], seed: int, memory: int = MEMORY
) -> Iterator[tuple[str, Boundary, Fit, dict[str, Any]]]:
    """Name, boundary, fit and columns of table `patches` of every repair in `asked`, whose values share one pass.

    What a repair refuses, the model or a boundary, is left out: a fit of its own tells why. Tensors of fits are on
    the CPU. `memory` bounds the statistics of one pass, in bytes.
    """
    channels = int(text_config(model).hidden_size)
    sizes = {}
    for one in asked.values():
        if (empty := _collector(model, one, [])) is not None:
            sizes[one.collected] = empty.size(channels)
    wanted = sorted({boundary for one in asked.values() for boundary in one.boundaries})
    per_pass = max(1, memory // max(1, sum(sizes.values())))
    for first in range(0, len(wanted), per_pass):
        yield from _group(model, sources, asked, wanted[first : first + per_pass], seed, channels)


def _collector(model: PreTrainedModel, one: Wanted, boundaries: Sequence[Boundary]) -> Collector | None:
    """None if the repair refuses."""
    try:
        return one.method.collector(model, boundaries, one.options)
    except LaminaError:
        return None


def _group(
    model: PreTrainedModel,
    sources: Sequence[Source],
    asked: Mapping[str, Wanted],
    group: Sequence[Boundary],
    seed: int,
    channels: int,
) -> Iterator[tuple[str, Boundary, Fit, dict[str, Any]]]:
    """The fits of boundaries whose statistics fit into memory together."""
    collectors: dict[str, Collector] = {}
    boundaries: dict[str, list[Boundary]] = {}
    for one in asked.values():
        boundaries.setdefault(one.collected, []).extend(one.boundaries.intersection(group))
    for one in asked.values():
        if one.collected not in collectors and boundaries[one.collected]:
            collector = _collector(model, one, sorted(set(boundaries[one.collected])))
            if collector is not None:
                collectors[one.collected] = collector
    if not collectors:
        return
    outputs = list(dict.fromkeys(module for each in collectors.values() for module in each.outputs))
    places = [place for each in collectors.values() for place in each.places]

    def add(batch: taps.Batch, streams: Mapping[int, torch.Tensor], held: torch.Tensor, weight: float) -> None:
        # If memory ran out for one collector, the others would have added the batch already, which is then halved.
        reserve(batch.real.numel(), channels, count=8, on=model.device)
        given = dict(zip(outputs, batch.outputs, strict=True))
        for each in collectors.values():
            each.add(replace(batch, outputs=[given[module] for module in each.outputs]), streams, held, weight)

    over.run(model, sources, places, add, seed, min(TOKENS, BATCH // channels), outputs)
    samples = over.counted(sources)
    made: list[tuple[str, Boundary, Fit, dict[str, Any]]] = []
    for boundary in group:
        statistics = {
            name: each.taken(boundary, samples) for name, each in collectors.items() if boundary in boundaries[name]
        }
        for name, one in asked.items():
            if boundary in one.boundaries and one.collected in statistics:
                fit = one.method.fit(statistics[one.collected], one.options)
                # The spectrum is computed where the fit was, and only then leaves the device.
                made.append((name, boundary, _on_host(fit), fit_rows.facts(one.method, fit, {})))
    maps = [asked[name].method.as_patch(fit.validated) for name, _, fit, _ in made]
    linear = [(boundary, each) for (_, boundary, *_), each in zip(made, maps, strict=True) if each is not None]
    checked = iter(check.measure_all(model, sources, linear, seed) if linear else [])
    for (name, boundary, fit, facts), each in zip(made, maps, strict=True):
        yield name, boundary, fit, facts if each is None else facts | next(checked)


def _on_host(fit: Fit) -> Fit:
    return replace(fit, tensors=_copied(fit.tensors), validated=_copied(fit.validated))


def _copied(tensors: protocol.Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
