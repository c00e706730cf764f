"""A pruned model, and what is fitted and trained on it."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lamina import paths
from lamina.api.inputs import NamedEntries, PreparedCalibration, PreparedModel
from lamina.data.calibrations import CalibrationSamples
from lamina.errors import LaminaError
from lamina.evaluation.assembly import Parts
from lamina.healing.batches import TrainingSource
from lamina.models.boundary import Boundary
from lamina.models.load import load_quantised
from lamina.models.materialise import materialise
from lamina.options.repairs import IN_LOOP, Repair
from lamina.repairs import fitting, patch
from lamina.repairs.protocol import Fitted
from lamina.selection.plans import Plan
from lamina.store import parquet
from lamina.variant import Variant


@dataclass(frozen=True, eq=False)
class PrunedModel:
    """A variant of a base model: its plan, and a repair and a healing if there are any.

    It holds only what differs from the base model. `model` is built on first access and shares all
    other weights with the base model.
    """

    base: PreparedModel
    calibrations: Mapping[str, PreparedCalibration]
    """Calibrations by name: first the one it was chosen on, then others that options may name."""
    variant: Variant
    """Its name."""
    plan: Plan
    """The removed units and their scores."""
    repairs: Mapping[str, Repair] = field(default_factory=dict)
    """The repairs with which the plan was chosen, by name."""
    chosen_repair: str | None = None
    """The repair that was chosen with the plan, or that was in place; may be `none`."""
    patches: Mapping[Boundary, Fitted] | None = None
    """The fitted repair."""
    patch_table: pa.Table | None = None
    """Table `patches`: how well the repair fits each removed run, and whether it helps."""
    adapter: Path | None = None
    """Folder of the trained adapter and its training curve."""
    training_table: pa.Table | None = None
    """Table `training`: the losses during the healing."""

    @cached_property
    def model(self) -> PreTrainedModel:
        """A transformers model in evaluation mode."""
        return materialise(self.base.model, *self.parts)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.base.tokenizer

    @property
    def parts(self) -> Parts:
        """What `model` is made of.

        Raises LaminaError if another healing was written into the folder of the adapter.
        """
        if self.adapter is None:
            return Parts(asdict(self.plan), self.patches, None)
        curve = parquet.read_table(paths.training(str(self.adapter)))
        if not curve.equals(self.training_table):
            raise LaminaError(
                f"{self.adapter} no longer holds the healing of {self.variant}: another one was "
                "written there. Give lamina.heal a folder for each."
            )
        return Parts(asdict(self.plan), self.patches, str(self.adapter))

    def __repr__(self) -> str:
        return f"PrunedModel({str(self.variant)!r}, units={self.plan.units})"

    def get_samples(self, names: Iterable[str]) -> dict[str, CalibrationSamples]:
        """The samples of the calibration that the variant was chosen on, and of these."""
        own = self.variant.calibration
        calibrations = find_calibrations(self.calibrations, own, names)
        return {name: calibration.content for name, calibration in calibrations.items()}


def find_calibrations(
    given: Mapping[str, PreparedCalibration], own: str, names: Iterable[str]
) -> dict[str, PreparedCalibration]:
    """The calibrations with these names, and `own` as the first of them.

    Raises LaminaError if one was not given.
    """
    found = {own: given[own]}
    for name in sorted(set(names) - {own}):
        if name not in given:
            raise LaminaError(
                f"an option names calibration '{name}', but lamina.select was given only "
                f"{', '.join(given)}. Add lamina.prepare(base, '{name}', …) to them."
            )
        found[name] = given[name]
    return found


def repair(
    pruned: PrunedModel, *, name: str | None = None, seed: int = 0, **options: Any
) -> PrunedModel:
    """Fit a repair to a pruned model, in closed form.

    Args:
        pruned: A model without a repair.
        name: What tables and exports call the repair; by default its `method`.
        seed: Draws the samples that only measure how well the repair fits.
        **options: Keys of `repairs` in a configuration, such as `method="ghost"` and
            `data={"own": 1, "general": 0.1}`. Without any, the repair is fitted that
            `lamina.select` chose with the plan, or that was in place; that may be none.

    Returns:
        The repaired model; `pruned` itself is not changed.

    Raises LaminaError if an option is not allowed, or the method cannot repair this plan.
    """
    _check_single(pruned, "repair")
    if pruned.patches is not None or pruned.adapter is not None:
        raise LaminaError(
            f"{pruned.variant} is already repaired or trained. Give a model without a repair."
        )
    if options:
        name = name or str(options.get("method", "repair"))
        entry = NamedEntries.from_options({"repairs": {name: options}}).repairs[name]
    else:
        chosen = pruned.chosen_repair
        if chosen is None:
            raise LaminaError(
                f"the selection of {pruned.variant} chose no repair. Give a method, such as "
                'lamina.repair(pruned, method="ghost").'
            )
        if chosen == "none":
            return pruned
        entry = pruned.repairs[chosen]
        name = name or chosen
    return _fit_repair(pruned, name, entry, seed)


def _check_single(pruned: PrunedModel, function: str) -> None:
    """Refuse the list that `lamina.select` gives.

    Raises LaminaError, whose message says how to take one model from the list.
    """
    if not isinstance(pruned, PrunedModel):
        raise LaminaError(
            f"lamina.{function} takes one pruned model, but lamina.select returns a list of them. "
            f"Write (pruned,) = lamina.select(…), then lamina.{function}(pruned, …)."
        )


def _fit_repair(pruned: PrunedModel, name: str, entry: Repair, seed: int) -> PrunedModel:
    own = pruned.variant.calibration
    request = fitting.sort_plans([asdict(pruned.plan)], pruned.base.n_layers, entry)
    if request.refusals:
        raise LaminaError(f"repairs.{name}: {request.refusals[0].reason}")
    if request.whole_sizes:
        raise LaminaError(
            f"repairs.{name}: {pruned.variant} removes nothing, so there is nothing to repair."
        )
    weights = [] if entry.automatic(own) else entry.ordered_weights(own, IN_LOOP)
    samples = pruned.get_samples(entry.weights(own, auto=0.0))
    groups = fitting.fit_plans(pruned.base.model, request, samples, weights, seed)
    tensors, rows = fitting.record_fits(request, groups, name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "patch.safetensors")
        patch.write_patch(file, entry.method, tensors)
        patches = patch.read_patch(file, pruned.plan.removed)
    return replace(
        pruned,
        variant=replace(pruned.variant, repair=name),
        patches=patches,
        patch_table=parquet.from_rows("patches", rows),
    )


def heal(
    pruned: PrunedModel, folder: str | Path, *, name: str | None = None, **options: Any
) -> PrunedModel:
    """Train a pruned model for a short time, bare or repaired.

    Args:
        pruned: A model without a healing.
        folder: Where the trained weights are written, as PEFT reads them, and the training curve
            (`training.parquet`). The healed model needs it.
        name: What tables and exports call the healing; by default its `method`.
        **options: Keys of `healings` in a configuration, such as `method="lora"`, `rank=8` and
            `data={"own": 1, "general": 0.1}`.

    Returns:
        The trained model; `pruned` itself is not changed.

    Raises LaminaError if an option is not allowed, there is nothing to train, or the loss is not
    finite.
    """
    _check_single(pruned, "heal")
    if pruned.adapter is not None:
        raise LaminaError(
            f"{pruned.variant} is already trained. Give the model from before its healing."
        )
    name = name or str(options.get("method", "healing"))
    entry = NamedEntries.from_options({"healings": {name: options}}).healings[name]
    weights = entry.ordered_weights(pruned.variant.calibration)
    samples = pruned.get_samples(calibration for calibration, _ in weights)
    sources = [
        TrainingSource(samples[calibration].samples, weight) for calibration, weight in weights
    ]
    base = pruned.base.model
    if entry.base_quantisation != "none":
        base = load_quantised(pruned.base.manifest, entry.base_quantisation)

    method = import_module(f"lamina.healing.{entry.method}")
    trained, rows = method.heal(base, asdict(pruned.plan), pruned.patches, sources, entry)
    method.save(trained, Path(folder))
    variant = replace(pruned.variant, healing=name)
    curve = parquet.from_rows("training", rows, **variant.row())
    parquet.write_table(paths.training(str(folder)), curve)
    return replace(pruned, variant=variant, adapter=Path(folder), training_table=curve)
