"""Repairs of pruned models, and what every repaired model answers (`repair.py`)."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from lamina.sweep import engine
from lamina.sweep.candidates import Candidate
from repair_cases import Case
from transformers import PreTrainedModel

from lamina.config import healings
from lamina.config.repairs import Repair
from lamina.errors import LaminaError
from lamina.healing import lora
from lamina.healing.training import Source
from lamina.models.boundary import Boundary, Patch, Repairing, share
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import kept_layers, removed_layers, runs
from lamina.repair import protocol, refit
from lamina.repair.protocol import Fitted

GENERAL = {"data": {"own": 1, "corpus": 0.1}}
REPAIRS: dict[str, dict[str, Any]] = {
    "none": {},
    "ghost": {"method": "ghost"},
    "ghost_general": {"method": "ghost", **GENERAL},
    "ghost_general_03": {"method": "ghost", "data": {"own": 1, "corpus": 0.03}},
    "ghost_refit": {"method": "ghost", "refit": True},
    "linearpatch": {"method": "linearpatch"},
    "linearpatch_diag": {"method": "linearpatch", "form": "diag"},
    "linearpatch_general": {"method": "linearpatch", **GENERAL},
    "replaceme": {"method": "replaceme"},
    "replaceme_general": {"method": "replaceme", **GENERAL},
    "prune_comp": {"method": "prune_comp"},
    "streamline": {"method": "streamline"},
    "streamline_general": {"method": "streamline", "epochs": 4, **GENERAL},
}
# Behind a repair, as `ghost+distill`; the settings are those of config/complete.yaml.
HEALINGS: dict[str, dict[str, Any]] = {
    "distill": {
        "method": "lora",
        "objective": "distill",
        "rank": 8,
        "alpha": 16,
        "learning_rate": 0.002,
        "batch": 16,
        "epochs": 4,
        "warmup_steps": 8,
        **GENERAL,
    }
}
CLOSED = tuple(name for name in REPAIRS if not name.startswith("streamline"))
HEALED = ("none", "ghost", "ghost_general", "streamline_general")
REPAIRS = (*REPAIRS, *(f"{repair}+{healing}" for healing in HEALINGS for repair in HEALED))
TOKENS = 16384


def on_general_text(repair: str) -> bool:
    """Whether a repair needs general text beside the own."""
    repair, _, healing = repair.partition("+")
    return "data" in REPAIRS[repair] or bool(healing)


class Variants:
    """Variants of one case, each measured once, however many selectors come to it."""

    def __init__(self, case: Case, every_run: Iterable[Boundary]) -> None:
        self.case, self.every_run = case, list(every_run)
        self._found: dict[tuple[frozenset[str], str], dict[str, Any]] = {}
        self._fits: dict[str, dict[Boundary, Fitted] | str] = {}
        self._patches: dict[tuple[Any, ...], Patch | None] = {}

    def measure(self, wanted: Iterable[tuple[Sequence[str], str]]) -> None:
        """Measure variants (units, repair): linear repairs in common passes, others as models of their own."""
        candidates: dict[tuple[frozenset[str], str], Candidate] = {}
        for units, repair in wanted:
            key = (frozenset(units), repair)
            if key in self._found or key in candidates:
                continue
            repairs = self.repairs(units, repair)
            if isinstance(repairs, str):
                self._found[key] = {"refused": repairs}
                continue
            # What is fitted behind other patches of the plan belongs to the plan, all else to the run.
            name = (repair, *sorted(units)) if "refit" in REPAIRS.get(repair, {}) else (repair,)
            patches = {run: self._patch((*name, run), repair) for run, repair in repairs.items()}
            linear = {run: patch for run, patch in patches.items() if patch}
            if "+" in repair or len(linear) < len(repairs):
                weights = self._uncut(self.model(units, repair, only_weights=True), units)
                self._found |= self._scored(weights, {key: Candidate(key[0], linear)})
            else:
                candidates[key] = Candidate(key[0], linear)
        if candidates:
            self._found |= self._scored(self.case.model, candidates)

    def repairs(self, units: Sequence[str], repair: str) -> dict[Boundary, Fitted] | str:
        """A repair for each run of removed layers, or why there is none."""
        name = repair.partition("+")[0]
        needed = runs(removed_layers(sorted(units)), self.case.depth)
        if not units or name == "none":
            return {}
        options = Repair.from_options(REPAIRS[name])
        if "refit" in REPAIRS[name]:
            fits, _ = refit.fit(self.case.model, self.case.sources(options), needed, options, self.case.seed)
            return {run: Fitted(options.method, fit.tensors) for run, fit in fits.items()}
        # Trained run after run, so only when one is needed; others share a pass, so all at once.
        fitted = self._fitted(name, options, needed if options.method == "streamline" else self.every_run)
        if isinstance(fitted, str):
            return fitted
        if not set(needed) <= set(fitted):
            return "a run begins at layer 0, and what is repaired stands before it"
        return {run: fitted[run] for run in needed}

    def model(self, units: Sequence[str], repair: str, only_weights: bool = False) -> PreTrainedModel:
        """The variant, trained where its repair says so; `only_weights` without its linear maps."""
        case, plan = self.case, {"units": list(units)}
        repairs = self.repairs(units, repair)
        assert not isinstance(repairs, str)
        patches: dict[Boundary, Repairing] = dict(repairs)
        left = {run: repair for run, repair in repairs.items() if not (only_weights and repair.as_patch())}
        healing = repair.partition("+")[2]
        if not healing:
            return materialise(case.model, plan, dict(left) if left else None)
        options = healings.Healing.from_options(HEALINGS[healing])
        sources = [Source(case.samples(name), weight) for name, weight in options.weights("own").items()]
        healed, _ = lora.heal(case.model, plan, patches or None, sources, options)
        with tempfile.TemporaryDirectory() as folder:
            lora.save(healed, folder)
            return materialise(case.model, plan, dict(left) if left else None, folder)

    def _uncut(self, variant: PreTrainedModel, units: Sequence[str]) -> PreTrainedModel:
        """The unpruned model with a variant's layers in their places, so that the engine can leave out the others."""
        whole = share(self.case.model)
        for place, layer in zip(kept_layers(whole, units), layers_of(variant), strict=True):
            layers_of(whole)[place] = layer
        return whole

    def _fitted(self, name: str, options: repairs.Repair, wanted: Iterable[Boundary]) -> dict[Boundary, Fitted] | str:
        """A repair by run, fitted in one pass where it can be; or why there is none."""
        known = self._fits.setdefault(name, {})
        if isinstance(known, str):
            return known
        # What is done to the layer before a run has no place before layer 0.
        first = 1 if options.method in ("replaceme", "streamline") else 0
        missing = [run for run in wanted if run not in known and run[0] >= first]
        if missing:
            method = protocol.method(options.method)
            try:
                found = method.collect(self.case.model, self.case.sources(options), missing, options, self.case.seed)
                known |= {run: Fitted(options.method, method.fit(sums, options).tensors) for run, sums in found}
            except LaminaError as refusal:
                self._fits[name] = str(refusal)
        return self._fits[name]

    def row(self, units: Sequence[str], repair: str) -> dict[str, Any]:
        """What was measured."""
        return self._found[frozenset(units), repair]

    def _patch(self, name: tuple[Any, ...], repair: Fitted) -> Patch | None:
        """One object per fit, so that streams of several candidates stay one."""
        if name not in self._patches:
            self._patches[name] = repair.as_patch()
        return self._patches[name]

    def _scored(self, model: PreTrainedModel, candidates: Mapping[Any, Candidate]) -> dict[Any, dict[str, Any]]:
        questions, texts = self.case.questions, self.case.texts
        with engine.opened(model, [*questions, *texts], TOKENS, False) as session:
            session.measure(range(len(questions) + len(texts)), candidates)
        scores, found = session.scores, {}
        places = [scores.index[key] for key in candidates]
        gold = scores.offsets[:-1] + [sample.gold for sample in scores.samples]
        length = np.array([len(sample.rows[sample.gold].continuation) for sample in scores.samples])
        right = np.array([scores.correct(places, number, True) for number in range(len(questions))]).T
        # Whether greedy decoding would write the right answer: every token of it is the argmax.
        written = (scores.hits[places][:, gold] == length)[:, : len(questions)]
        first = len(questions) if texts else 0
        names = [sample.document for sample in scores.samples[first:]]
        number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
        document = np.array([number_of[name] for name in names])
        tokens = np.bincount(document, length[first:])
        for place, key, answers, answered in zip(places, candidates, right, written, strict=True):
            nll = -np.nan_to_num(scores.loglikelihood[place, gold[first:]], nan=-np.inf)
            nll = np.bincount(document, nll)
            found[key] = {
                "accuracy": float(answers.mean()),
                "generated": float(answered.mean()) if texts else None,
                "perplexity": float(np.exp(min(700.0, nll.sum() / tokens.sum()))),
                "correct": answers.tolist(),
                "written": answered.tolist() if texts else None,
                "nll": nll.tolist(),
                "tokens": tokens.astype(int).tolist(),
            }
        return found
