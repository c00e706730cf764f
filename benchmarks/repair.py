"""Which layers to remove and how to repair what is left: every selector with every repair, on the same documents.

    python benchmarks/repair.py --output FOLDER                                  the embedded model and its tasks
    python benchmarks/repair.py --output FOLDER --model MODEL --text FILE        a model on disk and its kind of text
    python benchmarks/repair.py --output FOLDER --summary                        tables in markdown of what is there

One Parquet file per task (or model) and seed, one row per variant, with the answer to every document, so that any two
variants can be compared in pairs. A seed draws the calibration and its folds. What a file holds is not measured again,
so a run may be stopped at any time; the small sizes of all cases of a seed come first.
"""

import argparse
import importlib
import itertools
import json
import logging
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import repair_tables
import torch
from cases import REFERENCE, ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from lamina.config import metrics, recoveries
from lamina.config.metrics import METRICS
from lamina.data import lm_tasks
from lamina.data.calibrations import Row, Sample, chance_accuracy
from lamina.data.documents import corpus_file, read_documents
from lamina.data.text import text_samples
from lamina.errors import LaminaError
from lamina.evaluation import perplexity
from lamina.models.materialise import materialise
from lamina.models.surgery import removed_layers, runs
from lamina.models.variant import Boundary, Patch
from lamina.recovery import protocol, refit
from lamina.recovery.protocol import Fitted
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.search import block, exact, looped
from lamina.search.evaluator import Evaluator
from lamina.search.looped import Looped, Repairs, Source
from lamina.search.losses import loss_of
from lamina.search.plans import Plan, Request, Step
from lamina.streams.capture import capture
from lamina.sweep import engine
from lamina.sweep.candidates import Candidate
from lamina.tables import store

TASKS = ("addition", "sorting", "facts", "comparison")
GENERAL = {"data": {"own": 1, "corpus": 0.1}}
RECOVERIES: dict[str, dict[str, Any]] = {
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
}
# Without a metric: the case's own, accuracy for questions and loss for text.
SELECTORS: dict[str, dict[str, str]] = {
    "bare": {},
    "cosine": {"metric": "cosine"},
    "angular": {"metric": "angular"},
    "residual": {"metric": "residual"},
    "looped": {"recovery": "ghost"},
    "looped_general": {"recovery": "ghost_general"},
}
CALIBRATION, DOCUMENTS, WINDOW, TOKENS = 300, 80, 128, 16384


@dataclass(frozen=True)
class Case:
    """A model with samples to calibrate on and samples to judge by.

    Attributes
    ----------
    general : sequences of other text that repairs may be fitted on too; none where the own text is all there is.
    questions : test samples whose right answers are counted.
    texts : test samples of general text; empty where the questions are text themselves.
    """

    name: str
    model: PreTrainedModel
    seed: int
    calibration: list[Sample]
    general: list[tuple[int, ...]]
    questions: list[Sample]
    texts: list[Sample]
    fits: dict[str, dict[Boundary, Fitted] | str] = field(default_factory=dict)

    @cached_property
    def depth(self) -> int:
        """L."""
        return engine.layer_count(self.model)

    @cached_property
    def metric(self) -> str:
        """What units are chosen by."""
        return "perplexity" if self.calibration[0].kind == "text" else "accuracy"

    def sources(self, options: recoveries.Recovery) -> list[Source]:
        """What a recovery is fitted on."""
        known = {"own": [sample.sequence() for sample in self.calibration], "corpus": self.general}
        return [Source(known[name], weight) for name, weight in options.weights("own").items()]


def embedded(tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[Case]:
    """The embedded model: 300 drawn validation samples of a task, all 600 test ones, 80 documents of general text."""
    model, tokenizer = loaded(REFERENCE)
    recorder = lm_tasks.recorder(model, tokenizer)
    texts = windows(corpus("test")[:DOCUMENTS], tokenizer)
    for seed, name in itertools.product(seeds, tasks):
        drawn = random.Random(seed).sample(corpus("validation"), CALIBRATION)
        general = [sample.sequence() for sample in text_samples(drawn, tokenizer, WINDOW)]
        task = f"microworld_{name}"
        calibration, questions = (
            lm_tasks.task_samples(lm_tasks.task_object(task, ROOT, split=split), recorder, limit, seed)
            for split, limit in (("validation", CALIBRATION), ("test", None))
        )
        yield Case(name, model, seed, calibration, general, questions, texts)


def on_disk(folder: Path, file: Path, seeds: Sequence[int]) -> Iterator[Case]:
    """A model and its kind of text: 300 samples drawn from the first half of the file, tested on the second half."""
    model, tokenizer = loaded(folder)
    documents = read_documents(file)
    half = len(documents) // 2
    questions = text_samples(documents[half:], tokenizer, WINDOW)
    for seed in seeds:
        drawn = random.Random(seed).sample(documents[:half], CALIBRATION)
        yield Case(folder.name, model, seed, text_samples(drawn, tokenizer, WINDOW), [], questions, [])


def loaded(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def corpus(split: str) -> list[str]:
    """General text of the microworld."""
    return read_documents(corpus_file("microworld_corpus", split, ROOT))


def windows(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Sample]:
    """Documents as the benchmark of perplexity cuts them, as samples; `document` is the document's number."""
    cut = perplexity.windows(documents, tokenizer, WINDOW)
    rows = (Row(one.tokens[: one.first], one.tokens[one.first :], 0) for one in cut)
    return [
        Sample(number, "text", 0, (row,), str(one.document))
        for number, (row, one) in enumerate(zip(rows, cut, strict=True))
    ]


class Selection:
    """Plans of a case by selector, each made once and only as far as is asked for."""

    def __init__(self, case: Case, largest: int, known: Mapping[tuple[str, int], Sequence[str]]) -> None:
        self.case, self.plans = case, {key: list(units) for key, units in known.items()}
        self.every_run = [
            (start, start + length) for length in range(1, largest + 1) for start in range(case.depth - length + 1)
        ]
        self._repairs: dict[str, Repairs] = {}

    def plan(self, selector: str, removed: int) -> list[str]:
        """Units that go, in order."""
        if (selector, removed) not in self.plans:
            metric = SELECTORS[selector].get("metric", self.case.metric)
            if metric == "angular":
                units = self._run(removed)
            else:
                before = self.plan(selector, removed - 1) if removed > 1 else []
                units = [*before, self._next(before, metric, self._folds(SELECTORS[selector].get("recovery")))]
            self.plans[selector, removed] = units
        return self.plans[selector, removed]

    @cached_property
    def _angles(self) -> dict[tuple[int, int], float]:
        rows = capture(self.case.model, [sample.sequence() for sample in self.case.calibration])
        return {(row["layer"], row["span"]): row["angular_last"] for row in rows if row["span"]}

    def _run(self, removed: int) -> list[str]:
        request = Request(removed, "layer", self.case.depth, frozenset(), self.case.seed)
        empty = Plan("", "", "", removed, "angular", "block", "layer")
        return block.choose(request, Step(angles=self._angles), empty).units

    def _folds(self, recovery: str | None) -> Repairs | None:
        """The two folds' patches of every run there can be, in one go: each step of a loop needs some of them."""
        if recovery and recovery not in self._repairs:
            options, case = recoveries.read(RECOVERIES[recovery]), self.case
            alone = [Candidate(frozenset(map(str, range(*boundary)))) for boundary in self.every_run]
            self._repairs[recovery] = looped.fitted(case.model, case.sources(options), alone, options, case.seed)
        return self._repairs[recovery] if recovery else None

    def _next(self, removed: Sequence[str], metric: str, repairs: Repairs | None) -> str:
        """The unit that an iterative selector removes next."""
        case, current = self.case, Candidate(frozenset(removed))
        units = engine.all_units(case.depth, "layer", removed)
        chance = chance_accuracy(case.calibration, case.model.config.vocab_size)
        chosen = None
        pass_ = METRICS[metric].pass_
        if pass_ == "stream":
            rows = engine.sweep(case.model, case.calibration, units, removed, pass_, TOKENS).rows(units)
        elif pass_ != "removal":
            module = importlib.import_module(metrics.MODULES[pass_])
            rows = list(module.rows(case.model, case.calibration, units, removed, pass_, TOKENS))
        else:
            named = {current.without(unit): unit for unit in units}
            with engine.opened(case.model, case.calibration, TOKENS, False) as session:
                measuring = Looped(session, repairs) if repairs else session
                names = named | {current: engine.CURRENT}
                evaluator = Evaluator(measuring, loss_of(metric, "acc_norm"), [current], names)
                chosen = exact.run(evaluator, list(named), {"seed": case.seed}, chance)
            if chosen is not None:
                return named[chosen]
            rows = evaluator.rows([current, *named])
        keys = {"model": case.name, "calibration": case.name, "selector": metric, "removed": len(removed)}
        columns = from_table(store.from_rows("sweeps", rows, **keys))
        ranks = ranking(columns, metric, Context(chance, "acc_norm", len(removed))).ranks
        if ranks is None:
            raise LaminaError(f"{case.name}: the base model is at chance, so nothing can be chosen by {metric}.")
        return columns.units[ranks.index(1)]


def fitted(case: Case, recovery: str, every_run: Iterable[Boundary]) -> dict[Boundary, Fitted] | str:
    """A repair of every run there can be, fitted in one pass; or why there is none."""
    if recovery not in case.fits:
        options = recoveries.read(RECOVERIES[recovery])
        method = protocol.method(options.method)
        # What is folded into the MLP before a run has no place before layer 0.
        wanted = [run for run in every_run if run[0] > 0 or options.method != "replaceme"]
        try:
            found = method.collect(case.model, case.sources(options), wanted, options, case.seed)
            case.fits[recovery] = {
                run: Fitted(options.method, method.fit(sums, options).tensors) for run, sums in found
            }
        except LaminaError as refusal:
            case.fits[recovery] = str(refusal)
    return case.fits[recovery]


def refitted(case: Case, options: Any, needed: Sequence[Boundary]) -> dict[Boundary, Fitted]:
    """A repair of the runs of one plan, each fitted behind those before it."""
    fits, _ = refit.fit(case.model, case.sources(options), needed, options, case.seed)
    return {run: Fitted(options.method, fit.tensors) for run, fit in fits.items()}


class Variants:
    """Variants of one case, each measured once, however many selectors come to it."""

    def __init__(self, case: Case, every_run: Iterable[Boundary]) -> None:
        self.case, self.every_run = case, list(every_run)
        self._found: dict[tuple[frozenset[str], str], dict[str, Any]] = {}
        self._patches: dict[tuple[Any, ...], Patch] = {}

    def measure(self, wanted: Iterable[tuple[Sequence[str], str]]) -> None:
        """Measure variants (units, recovery): linear repairs in common passes, folded ones as models of their own."""
        candidates: dict[tuple[frozenset[str], str], Candidate] = {}
        for units, recovery in wanted:
            key = (frozenset(units), recovery)
            if key in self._found or key in candidates:
                continue
            if not units or recovery == "none":
                candidates[key] = Candidate(key[0])
                continue
            options = recoveries.read(RECOVERIES[recovery])
            needed = runs(removed_layers(sorted(units)), self.case.depth)
            # What is fitted behind other patches of the plan belongs to the plan, all else to the run.
            own = getattr(options, "refit", False)
            repairs = refitted(self.case, options, needed) if own else fitted(self.case, recovery, self.every_run)
            if isinstance(repairs, str) or not set(needed) <= set(repairs):
                why = repairs if isinstance(repairs, str) else "a run begins at layer 0, and no MLP is before it"
                self._found[key] = {"refused": why}
            elif options.LINEAR:
                name = (recovery, *sorted(units)) if own else (recovery,)
                patches = {run: self._patch((*name, run), repairs[run]) for run in needed}
                candidates[key] = Candidate(key[0], patches)
            else:
                model = materialise(self.case.model, {"units": list(units)}, {run: repairs[run] for run in needed})
                self._found |= self._scored(model, {key: Candidate()})
        if candidates:
            self._found |= self._scored(self.case.model, candidates)

    def row(self, units: Sequence[str], recovery: str) -> dict[str, Any]:
        """What was measured."""
        return self._found[frozenset(units), recovery]

    def _patch(self, name: tuple[Any, ...], repair: Fitted) -> Patch:
        """One object per fit, so that streams of several candidates stay one."""
        if name not in self._patches:
            patch = repair.as_patch()
            assert patch is not None
            self._patches[name] = patch
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


class Study:
    """The file of a case, which grows size by size."""

    def __init__(self, case: Case, largest: int, folder: Path) -> None:
        self.case, self.path = case, folder / f"{case.name}-{case.seed}.parquet"
        self.rows: list[dict[str, Any]] = store.read(self.path).to_pylist() if self.path.exists() else []
        known = {(row["selector"], row["removed"]): row["units"] for row in self.rows}
        self.selection = Selection(case, largest, known)
        self.variants = Variants(case, self.selection.every_run)

    def measure(self, removed: int, selectors: Sequence[str], wanted: Sequence[str]) -> None:
        """Add what is missing of one size."""
        case, began = self.case, time.monotonic()
        there = {name for name in RECOVERIES if case.general or "data" not in RECOVERIES[name]}
        chosen = [
            name
            for name in selectors
            if SELECTORS[name].get("metric", case.metric) in METRICS
            and SELECTORS[name].get("recovery", "none") in there
        ]
        keys = itertools.product(chosen, [name for name in wanted if name in there]) if removed else [("base", "none")]
        done = {(row["selector"], row["recovery"]) for row in self.rows if row["removed"] == removed}
        todo = [key for key in keys if key not in done]
        units = {name: self.selection.plan(name, removed) if removed else [] for name, _ in todo}
        chosen_after = time.monotonic() - began
        self.variants.measure((units[name], recovery) for name, recovery in todo)
        for name, recovery in todo:
            key = {"case": case.name, "seed": case.seed, "selector": name, "recovery": recovery, "removed": removed}
            self.rows.append({**key, "units": units[name], **self.variants.row(units[name], recovery)})
        if todo:
            store.write(self.path, pa.Table.from_pylist(self.rows, schema=repair_tables.SCHEMA))
            spent = {"selection": round(chosen_after), "all": round(time.monotonic() - began)}
            print(json.dumps({"case": case.name, "seed": case.seed, "removed": removed, "seconds": spent}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="folder of the Parquet files")
    parser.add_argument("--summary", action="store_true", help="print tables of what is in the folder")
    parser.add_argument("--model", type=Path, help="folder of a model; by default the embedded one")
    parser.add_argument("--text", type=Path, help="with --model: documents, of which half are for calibration")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(range(7)), help="0 is the unpruned model")
    parser.add_argument("--selectors", nargs="+", default=list(SELECTORS), choices=SELECTORS)
    parser.add_argument("--recoveries", nargs="+", default=list(RECOVERIES), choices=RECOVERIES)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    if args.summary:
        print(repair_tables.summary(args.output, args.selectors, args.recoveries))
    else:
        cases = on_disk(args.model, args.text, args.seeds) if args.model else embedded(args.tasks, args.seeds)
        for _, of_seed in itertools.groupby(cases, key=lambda case: case.seed):
            studies = [Study(case, max(args.sizes), args.output) for case in of_seed]
            for removed, study in itertools.product(args.sizes, studies):
                study.measure(removed, args.selectors, args.recoveries)
