"""The search of strategy `portfolio`: some documents propose sets of units, others judge them.

`split_documents` separates these documents, `proposing.propose_sets` asks the members for sets,
and `RepairedSets` turns them into candidates, bare and repaired. A `tournament` decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.data.splitting import index_documents
from lamina.engine import memory, sweep
from lamina.engine.candidates import Candidate
from lamina.engine.session import Session
from lamina.engine.sources import Source
from lamina.errors import LaminaError
from lamina.models.boundary import Boundary, Patch
from lamina.options.metrics import METRICS
from lamina.relevance import protocol
from lamina.repairs.patch_store import PatchStore
from lamina.selection import looped
from lamina.selection.evaluator import Evaluator, nats_per_token
from lamina.selection.looped import candidate_boundaries
from lamina.selection.options import Loop
from lamina.selection.plans import Plan
from lamina.selection.proposing import propose_sets
from lamina.selection.sets import SearchRequest
from lamina.selection.tournament import (
    NONE,
    JudgeAnswers,
    JudgeDocuments,
    Tournament,
    TournamentChoice,
    count_samples,
    exchange_units,
)
from lamina.selection.trials import (
    BASE,
    HELD_BACK,
    WINNER,
    exclude_documents,
    split_samples,
)

NO_PROPOSAL = (
    "no member of the portfolio proposes a set of this size. Give the calibration more samples, "
    "list other members, or protect fewer layers."
)


def search_plans(request: SearchRequest) -> tuple[list[Plan], list[dict[str, Any]]]:
    """The plans of all sizes, and the rows of table `searches` without its keys."""
    request.expect_sets()
    options = request.selector
    member_calibration, judges_by_calibration = split_documents(request.calibrations, options)
    proposals, unit_ranks = propose_sets(request, member_calibration)
    refused_plans = [
        request.make_plan(plan_size, refused=NO_PROPOSAL)
        for plan_size in request.sizes
        if not proposals[plan_size]
    ]
    proposals = {plan_size: sets for plan_size, sets in proposals.items() if sets}
    if not proposals:
        return refused_plans, []

    # Repairs are fitted on samples that do not judge.
    judge_documents = draw_judges(judges_by_calibration, options)
    judge_samples = [sample for samples in judges_by_calibration.values() for sample in samples]
    n_task_samples = len(next(iter(judges_by_calibration.values())))
    repaired_sets = RepairedSets(
        request.model,
        request.calibrations,
        [sample.sequence() for sample in member_calibration.samples],
        [sample.sequence() for sample in judge_samples],
        request.loops,
        PatchStore(request.folder),
    )
    # The sets compete on the judge documents.
    token_budget = memory.choose_token_budget(
        request.token_budget, request.model, judge_samples, request.depth + 2
    )
    exchange = partial(
        exchange_units,
        removable=request.units,
        scores=unit_ranks,
        n_sets=options.exchanges,
        unit_prices=request.prices,
    )
    outputs = METRICS[options.metric].outputs
    with sweep.open_session(request.model, judge_samples, token_budget, outputs) as session:
        judge_losses = JudgeLosses(session, options.metric, request.score, n_task_samples)
        trials = request.make_trials(session, judge_losses)
        tournament = Tournament(trials, judge_documents, repaired_sets)
        tournament.play(proposals, exchange)
        all_documents = judge_documents.select_between(0, 1)
        trials.measure_losses([Candidate()], np.concatenate(all_documents))
        base_losses = trials.get_losses(Candidate())
    # The session is closed here, because judging answers cuts the model.
    choices = tournament.choose(options.seed, _judge_of_answers(request, judges_by_calibration))

    # Plans of the winners, and rows of everything measured.
    base_loss = float(judge_documents.average_losses(base_losses, all_documents))
    judges_text = len(judges_by_calibration) > 1
    plans = [
        _plan_of_choice(request, plan_size, choice, base_loss, judges_text)
        for plan_size, choice in choices.items()
    ]
    end_rows = _rows_of_ends(
        options.strategy, judge_documents, base_losses, choices, tournament.rows
    )
    rows = [row | {"evaluation": number} for number, row in enumerate(end_rows)]
    return sorted([*plans, *refused_plans], key=lambda plan: plan.removed), rows


def _judge_of_answers(
    request: SearchRequest, judges_by_calibration: Mapping[str, Sequence[Sample]]
) -> JudgeAnswers | None:
    """The function that counts a candidate's right answers to the task's judge questions.

    None if the loss decides.
    """
    if request.questions is None:
        return None
    task_samples = next(iter(judges_by_calibration.values()))
    sample_indices = {sample.index for sample in task_samples}
    return partial(request.questions.judge_candidates, request.model, sample_indices)


def _plan_of_choice(
    request: SearchRequest,
    plan_size: int,
    choice: TournamentChoice,
    base_loss: float,
    judges_text: bool,
) -> Plan:
    """The plan of one size. A loss that mixes task and text cannot be turned into an accuracy."""
    bare_loss = choice["repairs"][NONE]
    metric = protocol.metric_named(request.selector.metric)
    accuracy_before = None if judges_text else metric.accuracy(base_loss)
    accuracy_after = None if judges_text else metric.accuracy(bare_loss)
    units = choice["units"]
    unmeasured = [None] * (len(units) - 1)
    recorded_choice = {name: value for name, value in choice.items() if name != "units"}
    return request.make_plan(
        plan_size,
        units=units,
        scores=[bare_loss] * len(units),
        choice={"base_loss": base_loss, **recorded_choice},
        accuracy_before=[accuracy_before, *unmeasured],
        accuracy_after=[*unmeasured, accuracy_after],
    )


def _rows_of_ends(
    strategy: str,
    judge_documents: JudgeDocuments,
    base_losses: np.ndarray,
    choices: Mapping[int, TournamentChoice],
    tournament_rows: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of table `searches`: the base model, all sets of the tournament, and the winners.

    A winner has one row on all judge documents, and one on the last half of them that corrects for
    picking the best of many. So has the base model.
    """
    all_documents = judge_documents.select_between(0, 1)
    last_half = judge_documents.select_between(0.5, 1)
    sample_counts = {WINNER: count_samples(all_documents), HELD_BACK: count_samples(last_half)}

    def row(stage: str, loss: float, n_new: int = 0, **columns: Any) -> dict[str, Any]:
        return {
            "strategy": strategy,
            "stage": stage,
            "loss": loss,
            "n_samples": sample_counts[stage],
            "n_new": n_new,
            "kept": True,
            "layer_tokens": 0.0,
            **columns,
        }

    base_columns: dict[str, Any] = {"strategy": BASE, "removed": 0, "step": 0, "units": []}
    base_loss = float(judge_documents.average_losses(base_losses, all_documents))
    base_loss_last = float(judge_documents.average_losses(base_losses, last_half))
    search_rows = [
        row(WINNER, base_loss, sample_counts[WINNER], **base_columns),
        row(HELD_BACK, base_loss_last, **base_columns),
    ]
    search_rows += [{"strategy": strategy, **columns} for columns in tournament_rows]
    for plan_size, choice in choices.items():
        choice_columns: dict[str, Any] = {
            "removed": plan_size,
            "step": plan_size,
            "units": choice["units"],
            "member": choice["member"],
            "repair": choice["repair"],
        }
        search_rows.append(row(WINNER, choice["loss"], **choice_columns))
        search_rows.append(row(HELD_BACK, choice["corrected_loss"], **choice_columns))
    return search_rows


def split_documents(
    calibrations: Mapping[str, CalibrationSamples], portfolio: Any
) -> tuple[CalibrationSamples, dict[str, list[Sample]]]:
    """The calibration on which members propose, and the judge samples by calibration, task first.

    No document is on both sides, whatever its length or its calibration.

    Raises LaminaError if there are too few documents.
    """
    own_calibration, calibration = next(iter(calibrations.items()))
    judges_by_calibration: dict[str, list[Sample]] = {}
    if portfolio.judge and portfolio.judge != own_calibration:
        choosing_samples = list(calibration.samples)
        judges_by_calibration[portfolio.judge] = list(calibrations[portfolio.judge].samples)
    else:
        seen, held_back = split_samples(
            calibration.sequences(), portfolio.held_back, portfolio.seed
        )
        choosing_samples = [calibration.samples[index] for index in seen]
        judges_by_calibration[own_calibration] = [calibration.samples[index] for index in held_back]
    for calibration_name in portfolio.also:
        if calibration_name not in judges_by_calibration:
            # Repairs may be fitted on the rest of it.
            text_calibration = calibrations[calibration_name]
            _, held_back = split_samples(
                text_calibration.sequences(), portfolio.held_back, portfolio.seed
            )
            judges_by_calibration[calibration_name] = [
                text_calibration.samples[index] for index in held_back
            ]
    judges_by_calibration = _without_documents_of(choosing_samples, judges_by_calibration)
    for calibration_name, samples in judges_by_calibration.items():
        if not samples:
            raise LaminaError(
                f"calibration '{calibration_name}' has no document left to judge a portfolio, "
                "because members used all of them to propose sets. Name another calibration, or "
                "give it more documents."
            )
    return CalibrationSamples(tuple(choosing_samples), calibration.facts), judges_by_calibration


def _without_documents_of(
    choosing_samples: Sequence[Sample], judges_by_calibration: Mapping[str, Sequence[Sample]]
) -> dict[str, list[Sample]]:
    """The judge samples whose documents, at any length, are not among the choosing samples."""
    sample_groups = [choosing_samples, *judges_by_calibration.values()]
    sequence_groups: list[list[tuple[int, ...]]] = []
    for samples in sample_groups:
        sequence_groups.append([sample.sequence() for sample in samples])
    document_numbers = index_documents(sequence_groups)
    choosing_documents = set(document_numbers[0])
    kept_judges: dict[str, list[Sample]] = {}
    for (name, samples), judge_documents in zip(
        judges_by_calibration.items(), document_numbers[1:], strict=True
    ):
        kept_judges[name] = [
            sample
            for sample, document in zip(samples, judge_documents, strict=True)
            if document not in choosing_documents
        ]
    return kept_judges


def draw_judges(
    judges_by_calibration: Mapping[str, Sequence[Sample]], portfolio: Any
) -> JudgeDocuments:
    """Judge samples in a drawn order; those of the task weigh 1, texts as `also` says."""
    generator = np.random.default_rng(portfolio.seed)
    group_ends = np.cumsum([0, *(len(samples) for samples in judges_by_calibration.values())])
    drawn_orders = [
        generator.permutation(np.arange(start, end))
        for start, end in zip(group_ends[:-1], group_ends[1:], strict=True)
    ]
    text_calibrations = list(judges_by_calibration)[1:]
    return JudgeDocuments(
        drawn_orders, [1.0, *(portfolio.also[name] for name in text_calibrations)]
    )


class JudgeLosses:
    """Losses of candidates: by the metric on the task's samples, per token on texts.

    The samples of the task come first.
    """

    def __init__(self, session: Session, metric: str, score: str, n_task_samples: int) -> None:
        self._task = Evaluator(session, metric, score)
        self._text = Evaluator(session, metric, score, nats_per_token)
        self._n_task_samples = n_task_samples

    def measure_losses(
        self, candidates: Sequence[Candidate], sample_indices: Iterable[int]
    ) -> np.ndarray:
        """(candidates, samples)."""
        index_array = np.fromiter(sample_indices, dtype=int)
        is_task = index_array < self._n_task_samples
        judge_losses = np.empty((len(candidates), len(index_array)))
        for evaluator, is_judged in ((self._task, is_task), (self._text, ~is_task)):
            if is_judged.any():
                judge_losses[:, is_judged] = evaluator.measure_losses(
                    candidates, index_array[is_judged]
                )
        return judge_losses


class RepairedSets:
    """The candidates of sets, bare and with every repair, fitted on documents that do not judge.

    Patches, C² float32 numbers for each run of removed layers, are kept in a store.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        calibrations: Mapping[str, CalibrationSamples],
        choosing_sequences: Sequence[Sequence[int]],
        judging_sequences: Sequence[Sequence[int]],
        loops: Mapping[str, Loop],
        patch_store: PatchStore | None = None,
    ) -> None:
        """Start without patches.

        choosing_sequences: Token sequences of the variant's own calibration that propose sets.
        judging_sequences: Token sequences that judge, of all calibrations.
        """
        self._model = model
        self._loops = loops
        self._depth = sweep.layer_count(model)
        self._store = patch_store or PatchStore()
        own_name = next(iter(calibrations))
        sequences = {
            repair_name: exclude_documents(calibration.sequences(), judging_sequences)
            for repair_name, calibration in calibrations.items()
        }
        sequences[own_name] = list(choosing_sequences)
        self._sources: dict[str, list[Source]] = {}
        self._patches: dict[str, dict[Boundary, Patch]] = {}
        for repair_name, repair_loop in loops.items():
            self._sources[repair_name] = [
                Source(sequences[calibration], weight)
                for calibration, weight in repair_loop.weights
            ]
            self._patches[repair_name] = {}

    def __call__(
        self, unit_sets: Iterable[frozenset[str]]
    ) -> dict[frozenset[str], dict[str, Candidate]]:
        bare_candidates = {units: Candidate(units) for units in unit_sets}
        self._fit_missing(candidate_boundaries(bare_candidates.values(), self._depth))
        candidates: dict[frozenset[str], dict[str, Candidate]] = {}
        for units, bare_candidate in bare_candidates.items():
            candidates[units] = {NONE: bare_candidate}
            for repair_name, patches in self._patches.items():
                own_patches = {
                    run: patches[run] for run in candidate_boundaries([bare_candidate], self._depth)
                }
                candidates[units][repair_name] = Candidate(units, own_patches)
        return candidates

    def _fit_missing(self, runs: Sequence[Boundary]) -> None:
        """Fit the patches of every repair for those runs that have none yet."""
        for repair_name, repair_loop in self._loops.items():
            fitted_patches = self._patches[repair_name]
            missing_runs = [run for run in runs if run not in fitted_patches]
            if missing_runs:
                fitted_patches |= looped.fit_patches(
                    self._model,
                    self._sources[repair_name],
                    missing_runs,
                    repair_loop.repair,
                    repair_loop.seed,
                    self._store,
                )
