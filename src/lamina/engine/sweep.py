"""The ablation engine: sessions that are proven on their model, and the sweep over all units."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.engine import forking, proof
from lamina.engine.batches import TOKENS
from lamina.engine.scores import Scores
from lamina.engine.session import Pass, Session
from lamina.models.structure import layers_of
from lamina.models.units import Visit, parse_unit
from lamina.store.unfinished import Progress


def share_by_cost(units: Sequence[str], n_layers: int, block: int, n_blocks: int) -> list[str]:
    """The units that job `block` of `n_blocks` measures; all jobs cost about the same.

    Removing a unit of layer l costs the layers from l on. Every job also runs the model itself,
    whatever its share. Units are assigned by decreasing cost, each to the least loaded job.
    """
    load_by_job = [0] * n_blocks
    units_of_block: list[str] = []
    for unit in sorted(units, key=lambda unit: parse_unit(unit)[0]):
        lightest_job = load_by_job.index(min(load_by_job))
        load_by_job[lightest_job] += n_layers - parse_unit(unit)[0]
        if lightest_job == block:
            units_of_block.append(unit)
    return units_of_block


def sweep_units(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    units: Sequence[str],
    removed: Sequence[str] = (),
    pass_: Pass = "removal",
    token_budget: int = TOKENS,
    outputs: bool = True,
    progress: Progress | None = None,
) -> Scores:
    """Measure the removal of each of `units` on every sample, with `removed` already removed.

    model: The base model, complete: `removed` units are skipped in the pass, not cut out.
    pass_: "removal" evaluates the model without each unit; "stream" runs the current model alone,
        which is enough for the metrics that compare a unit's input with its output.
    token_budget: The budget of one pass: lines × streams × length. It determines the memory.
    outputs: Whether to compare the outputs with the base model's.
    progress: Stores what is measured so far, so that a new process can continue a killed one's
        work.

    Raises LaminaError if the model itself yields logits that are not numbers.
    """
    with open_session(model, samples, token_budget, outputs and pass_ == "removal") as session:
        session.sweep(units, removed, pass_, progress)
    return session.scores


@contextmanager
def open_session(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    token_budget: int = TOKENS,
    outputs: bool = True,
    replacements: Mapping[Visit, nn.Module] | None = None,
) -> Iterator[Session]:
    """A session that measures candidates on samples, as often as needed; arguments as in `sweep_units`.

    replacements: The layers of other models that edits such as `7=math:7` insert.

    Raises LaminaError if the engine does not give this model's own numbers, see
    `lamina.engine.proof`.
    """
    model_proof = proof.Proof(model, samples)
    with forking.wrap_layers(model) as (layers, head):
        for visit, module in (replacements or {}).items():
            layers[visit.layer].donors[visit.donor] = module
        session = Session(model, layers, head, samples, token_budget, outputs, proof.check_edits)
        model_proof.prove(session)
        yield session


def layer_count(model: PreTrainedModel) -> int:
    """L, counted in the loaded model."""
    return len(layers_of(model))
