"""The portfolio: members propose sets and other documents judge them.

It is compared with sets tried one by one and with models that were really cut and repaired.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamina.data.calibrations import CalibrationSamples, Sample, build_calibration
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina.options.selectors import Selector
from lamina.repairs.patch_store import FiledPatch, PatchStore
from lamina.selection import judging, proposing, tournament
from lamina.selection.options import Loop
from lamina.selection.plans import UnitPrices
from lamina.selection.rounds import SearchSpace
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies import pairwise, portfolio
from lamina.selection.tournament import (
    EXCHANGE,
    NONE,
    JudgeDocuments,
    Tournament,
    TournamentChoice,
)
from lamina.selection.trials import Trials
from lamina_workflow.cost.estimate import count_tokens
from lamina_workflow.cost.searches import SearchedModel, search_work
from tests.given import tiny
from tests.given.cut_models import naive_gold_losses, token_sequences
from tests.given.edited_models import hold_path
from tests.selection.examples import (
    KEYS,
    N_SAMPLES,
    UNITS,
    ToyLosses,
    ghost_options,
    random_calibration,
)
from tests.selection.test_rearrange import texts_written_by

Proposals = Mapping[int, Mapping[str, frozenset[str]]]


def bare_candidates(sets: Iterable[frozenset[str]]) -> dict[frozenset[str], dict[str, Candidate]]:
    """Candidates without repairs."""
    return {units: {NONE: Candidate(units)} for units in sets}


def random_proposals(sizes: Sequence[int]) -> dict[int, dict[str, frozenset[str]]]:
    """One set of each size by each of three members."""
    generator = np.random.default_rng(3)
    proposals: dict[int, dict[str, frozenset[str]]] = {}
    for size in sizes:
        proposals[size] = {}
        for member in ("a", "b", "c"):
            units = generator.permutation(UNITS)[:size].tolist()
            proposals[size][member] = frozenset(units)
    return proposals


def play_tournament(
    toy: ToyLosses, proposals: Proposals
) -> tuple[dict[int, TournamentChoice], list[dict[str, Any]]]:
    """The winner of each size and the rows of table `searches`, with ten exchanges around a set."""
    judges = JudgeDocuments([np.random.default_rng(0).permutation(N_SAMPLES)], [1.0])
    scores = dict(zip(UNITS, ToyLosses().single_effects, strict=True))

    def exchange(units: frozenset[str]) -> list[frozenset[str]]:
        return tournament.exchange_units(units, UNITS, scores, 10, UnitPrices())

    contest = Tournament(Trials(toy, N_SAMPLES), judges, bare_candidates)
    contest.play(proposals, exchange)
    return contest.choose(0), contest.rows


def test_the_winner_is_the_best_of_all_sets_that_were_measured() -> None:
    """Without noise, a quarter of the documents ranks as all do, so no better set may drop out."""
    toy = ToyLosses(1)
    toy.noise[:] = 0
    proposals = random_proposals([2, 4])

    choices, rows = play_tournament(toy, proposals)

    for size, choice in choices.items():
        measured_sets = {frozenset(row["units"]) for row in rows if row["removed"] == size}
        assert set(proposals[size].values()) < measured_sets
        least_loss = min(toy.mean_loss(units) for units in measured_sets)
        assert choice["loss"] == pytest.approx(least_loss)
        assert toy.mean_loss(choice["units"]) == pytest.approx(least_loss)
        assert choice["member"] in (*proposals[size], EXCHANGE)
        assert choice["repair"] == NONE


def test_each_member_is_compared_with_the_winner_on_the_same_documents() -> None:
    toy = ToyLosses(1)
    toy.noise[:] = 0
    proposals = random_proposals([2, 4])

    choices, _ = play_tournament(toy, proposals)

    for size, choice in choices.items():
        assert choice["members"].keys() == proposals[size].keys()
        for member, result in choice["members"].items():
            member_loss = toy.mean_loss(proposals[size][member])
            assert frozenset(result["units"]) == proposals[size][member]
            assert result["loss"] == pytest.approx(member_loss)
            assert result["more"] == pytest.approx(member_loss - choice["loss"])


def test_few_documents_come_first_and_no_loss_is_measured_twice() -> None:
    toy = ToyLosses(2)

    choices, rows = play_tournament(toy, random_proposals([3]))

    assert len(set(toy.measured)) == len(toy.measured), "measured twice"
    assert sum(row["n_new"] for row in rows) == len(toy.measured)
    assert choices[3]["n_samples"] == N_SAMPLES
    rounds: list[list[dict[str, Any]]] = []
    for stage in ("1", "2", "3"):
        rounds.append([row for row in rows if row["stage"] == stage])
    n_sets = [len(round_rows) for round_rows in rounds]
    assert n_sets[0] > 8
    assert n_sets[1:] == [8, 4]
    assert [round_rows[0]["n_samples"] for round_rows in rounds] == [10, 20, 40]
    for round_rows, next_rows in zip(rounds[:-1], rounds[1:], strict=True):
        survivors = [row for row in round_rows if row["kept"]]
        dropped = [row for row in round_rows if not row["kept"]]
        surviving_sets = {tuple(row["units"]) for row in survivors}
        assert surviving_sets == {tuple(row["units"]) for row in next_rows}
        assert max(row["loss"] for row in survivors) <= min(row["loss"] for row in dropped)


class LossesBySize(ToyLosses):
    """Sets of three units lose less than all others."""

    def sample_losses(self, removed_units: Iterable[str]) -> np.ndarray:
        loss = 5.0 if len(list(removed_units)) == 3 else 7.0
        return np.full(N_SAMPLES, loss)


def test_a_size_that_loses_more_than_a_larger_one_says_so() -> None:
    choices, _ = play_tournament(LossesBySize(), random_proposals([2, 3, 4]))

    assert "At size 3" in choices[2]["note"]
    assert "note" not in choices[3]
    assert "note" not in choices[4]


def exchanged_sets(n_sets: int) -> list[frozenset[str]]:
    """Sets around layers 3 and 8, where deeper layers have higher scores."""
    scores = {unit: float(unit) for unit in UNITS}
    units = frozenset({"3", "8"})
    return tournament.exchange_units(units, UNITS, scores, n_sets, UnitPrices())


def test_exchanges_change_one_unit_and_begin_with_the_most_promising() -> None:
    sets = exchanged_sets(7)

    assert sets[0] == {"3", "0"}
    assert len(set(sets)) == 7
    for units in sets:
        assert len(units) == 2
        assert len(units & {"3", "8"}) == 1


def test_exchanges_leave_layers_that_move_where_they_are() -> None:
    scores = {unit: float(unit) for unit in UNITS}
    units = frozenset({"3", "8", "5-6x2", "0<>1"})

    sets = tournament.exchange_units(units, UNITS, scores, 99, UnitPrices())

    free_layers = {"2", "4", "7", "9"}
    expected = {frozenset({"5-6x2", "0<>1", old, new}) for old in "38" for new in free_layers}
    assert set(sets) == expected


def test_there_are_as_many_exchanges_as_pairs_of_removed_and_other_units() -> None:
    assert len(exchanged_sets(99)) == 2 * 8


def test_the_corrected_loss_is_not_flattered() -> None:
    """Of twenty sets with a true loss of 1, the least mean is far below 1 and the corrected not."""
    n_studies = 60
    generator = np.random.default_rng(0)
    least_losses: list[float] = []
    corrected_losses: list[float] = []
    for study in range(n_studies):
        losses = generator.normal(1, 1, (20, 80))
        judges = JudgeDocuments([generator.permutation(80)], [1.0])
        least_losses.append(losses.mean(axis=1).min())
        corrected_losses.append(tournament.correct_loss(list(losses), judges, study))

    standard_error = 1 / np.sqrt(40 * n_studies)
    assert np.mean(least_losses) < 1 - 6 * standard_error
    assert abs(np.mean(corrected_losses) - 1) < 4 * standard_error


def portfolio_options(**options: Any) -> Any:
    settings = {
        "strategy": "portfolio",
        "members": ["block", "clusters", "cosine", "perplexity"],
        "exchanges": 4,
    }
    return Selector.from_options(settings | options)


def documents_of(samples: Iterable[Sample]) -> set[tuple[int, ...]]:
    return {sample.sequence() for sample in samples}


@pytest.mark.parametrize(
    "options",
    [
        portfolio_options(held_back=0.5),
        portfolio_options(held_back=0.3, also={"text": 0.5}),
        portfolio_options(judge="text"),
    ],
    ids=["own", "also", "judge"],
)
def test_no_document_both_chooses_and_judges(options: Any) -> None:
    """Six documents occur twice in the own calibration, and all of them in the text as well."""
    calibration = random_calibration()
    own_samples = (*calibration.samples, *calibration.samples[:6])
    text_samples = (*random_calibration(6, 5).samples, *calibration.samples)
    calibrations = {
        "own": CalibrationSamples(own_samples, calibration.facts),
        "text": CalibrationSamples(text_samples, calibration.facts),
    }

    choosing, judges = judging.split_documents(calibrations, options)

    for judge_samples in judges.values():
        assert judge_samples
        assert not documents_of(choosing.samples) & documents_of(judge_samples)
    if options.judge:
        assert len(choosing.samples) == 30
        assert list(judges) == ["text"]
        assert len(judges["text"]) == 6
    else:
        assert list(judges) == ["own", *options.also]


def test_half_of_a_text_judges_and_repairs_may_be_fitted_on_the_rest() -> None:
    calibrations = {"own": random_calibration(), "text": random_calibration(20, 9)}

    _, judges = judging.split_documents(calibrations, portfolio_options(also={"text": 1.0}))

    assert len(judges["text"]) == 10


def test_a_judge_without_documents_of_its_own_is_refused() -> None:
    calibration = random_calibration()
    calibrations = {"own": calibration, "text": calibration}

    with pytest.raises(LaminaError, match="'text' has no document"):
        judging.split_documents(calibrations, portfolio_options(judge="text"))


def request_search(
    model: Any, calibrations: Mapping[str, CalibrationSamples], options: Any, **others: Any
) -> SearchRequest:
    sizes = others.pop("sizes", [1, 2])
    return SearchRequest(model, calibrations, options, sizes, KEYS, "acc", 4000, **others)


def mean_text_loss(model: Any, samples: Sequence[Sample]) -> float:
    """Nats per token, averaged over samples."""
    n_tokens = [len(sample.rows[sample.gold].continuation) for sample in samples]
    return float((naive_gold_losses(model, samples) / n_tokens).mean())


@pytest.mark.parametrize("max_bytes", [0, 1 << 30])
def test_whole_sets_are_measured_as_models_really_cut_and_repaired(
    max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every finalist, bare and with its patches; text counts per token and with its weight.

    Without memory for them, all patches wait in a file.
    """
    monkeypatch.setattr(judging, "PatchStore", partial(PatchStore, max_bytes=max_bytes))
    model = tiny.model(depth=5)
    calibrations = {"c": random_calibration(24), "text": random_calibration(10, 7)}
    options = portfolio_options(held_back=0.5, also={"text": 0.5}, repairs=["ghost"], protect=[0])
    fit_weights = [("c", 1.0), ("text", 0.1)]
    loops = {"ghost": Loop(repair=ghost_options(), weights=fit_weights, protect=[0], seed=0)}

    plans, rows = judging.search_plans(request_search(model, calibrations, options, loops=loops))

    choosing, judges = judging.split_documents(calibrations, options)
    repaired_sets = judging.RepairedSets(
        model,
        calibrations,
        token_sequences(choosing.samples),
        token_sequences([*judges["c"], *judges["text"]]),
        loops,
    )

    def expected_loss(variant: Any) -> float:
        task_loss = naive_gold_losses(variant, judges["c"]).mean()
        return float(task_loss + 0.5 * mean_text_loss(variant, judges["text"]))

    finalists = [row for row in rows if row["stage"] == "3"]
    assert {row["repair"] for row in finalists} == {"none", "ghost"}
    assert len({tuple(row["units"]) for row in finalists}) > 3
    for row in finalists:
        units = frozenset(row["units"])
        patches = repaired_sets([units])[units][row["repair"]].patches
        for patch in patches.values():
            assert isinstance(patch, FiledPatch) == (max_bytes == 0)
        variant = materialise(model, {"units": row["units"]}, patches or None)
        assert row["loss"] == pytest.approx(expected_loss(variant), abs=2e-3)

    for plan in plans:
        finalists_of_size = [row for row in finalists if row["removed"] == plan.removed]
        winner = min(finalists_of_size, key=lambda row: row["loss"])
        assert set(plan.units) == set(winner["units"])
        assert len(plan.units) == plan.removed
        assert "0" not in plan.units
        assert plan.choice["loss"] == winner["loss"]
        assert plan.choice["repair"] == winner["repair"]
        assert plan.choice["repairs"].keys() == {"none", "ghost"}

    (base_row,) = [row for row in rows if row["strategy"] == "none" and row["stage"] == "winner"]
    assert base_row["loss"] == pytest.approx(expected_loss(model), abs=2e-3)


def test_a_metric_proposes_the_units_of_the_lowest_single_losses() -> None:
    model = tiny.model(depth=5)
    calibration = random_calibration(12)

    sets, _ = proposing.propose_sets(
        request_search(model, {}, portfolio_options(members=["perplexity"]), sizes=[2, 3]),
        calibration,
    )

    losses: dict[str, float] = {}
    for unit in all_units(5, "layer"):
        losses[unit] = naive_gold_losses(model, calibration.samples, [unit]).mean()
    units_by_loss = sorted(losses, key=losses.__getitem__)
    assert sets[2] == {"perplexity": frozenset(units_by_loss[:2])}
    assert sets[3] == {"perplexity": frozenset(units_by_loss[:3])}


def test_deepest_layers_and_sets_of_the_configuration_compete_at_their_sizes() -> None:
    model = tiny.model(depth=6)
    options = portfolio_options(members=["deepest"], sets=[[1, -1], [0, 2, 3], [4]])

    sets, _ = proposing.propose_sets(
        request_search(model, {}, options, sizes=[2, 3]), random_calibration(12)
    )

    assert sets[2] == {"deepest": frozenset({"4", "3"}), "set 1": frozenset({"1", "5"})}
    assert sets[3] == {"deepest": frozenset({"4", "3", "2"}), "set 2": frozenset({"0", "2", "3"})}


def test_a_block_is_proposed_where_the_streams_around_it_are_most_alike() -> None:
    model = tiny.model(depth=6)
    calibration = random_calibration(12)

    sets, _ = proposing.propose_sets(
        request_search(model, {}, portfolio_options(), sizes=[2, 3]), calibration
    )

    assert set(sets[2]) == {"block", "clusters", "cosine", "perplexity"}
    mean_distances: list[float] = []
    for start in range(4):
        distances: list[float] = []
        for sequence in calibration.sequences():
            streams = tiny.stream(model, torch.tensor([sequence]), layers_of(model))
            cosines = torch.cosine_similarity(streams[start], streams[start + 3], dim=-1)
            distances.append(float((1 - cosines).mean()))
        mean_distances.append(np.mean(distances))
    start = int(np.argmin(mean_distances))
    assert sets[3]["block"] == {str(layer) for layer in range(start, start + 3)}


def test_a_search_may_be_a_member_and_proposes_what_it_finds_alone() -> None:
    model = tiny.model(depth=5)
    calibration = random_calibration(8)
    options = portfolio_options(members=["perplexity", "pairwise"])

    sets, _ = proposing.propose_sets(request_search(model, {}, options, sizes=[2, 3]), calibration)

    units = all_units(5, "layer")
    losses: dict[frozenset[str], np.ndarray] = {}
    for size in (0, 1, 2):
        for removed_units in combinations(units, size):
            removed_losses = naive_gold_losses(model, calibration.samples, removed_units)
            losses[frozenset(removed_units)] = removed_losses
    single_effects, pair_effects = pairwise.estimate_effects(losses, units)
    for size in (2, 3):
        unit_indices = pairwise.minimise(single_effects, pair_effects, size)
        assert sets[size]["pairwise"] == {units[index] for index in unit_indices}


def test_what_rearranging_finds_wins_where_layers_are_in_the_wrong_order() -> None:
    original = tiny.model("llama")
    samples = texts_written_by(original)
    planted = hold_path(original, [0, 3, 2, 1, 4, 4])
    calibration = build_calibration(samples, 100, source="test", split="test", seed=0)
    options = portfolio_options(members=["perplexity", "block", "rearrange"])

    [plan], _ = judging.search_plans(
        request_search(planted, {"c": calibration}, options, sizes=[1])
    )

    # Which of the two equal layers goes is decided among exchanges around what was proposed.
    assert set(plan.units) in ({"1<>3", "4"}, {"1<>3", "5"})


def test_a_size_that_no_member_proposes_is_refused_and_the_others_are_judged() -> None:
    """Of six layers the third is protected, so that no block of four is left."""
    options = portfolio_options(members=["block"], protect=[2])
    request = request_search(
        tiny.model(depth=6), {"c": random_calibration(20)}, options, sizes=[2, 4]
    )

    pair, four = judging.search_plans(request)[0]

    assert len(pair.units) == 2
    assert four.refused is not None
    assert "proposes a set of this size" in four.refused


def test_a_killed_search_goes_on_to_the_same_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(depth=5)
    calibrations = {"c": random_calibration(20)}
    log = tmp_path / "search.log"

    def search() -> Any:
        plans, rows = judging.search_plans(
            request_search(model, calibrations, portfolio_options(), log=log)
        )
        for row in rows:
            del row["layer_tokens"]
        return plans, rows

    measure = judging.JudgeLosses.measure_losses
    n_measurements = 0

    def measure_twice(self: Any, candidates: Any, sample_indices: Any) -> np.ndarray:
        nonlocal n_measurements
        n_measurements += 1
        if n_measurements == 3:
            raise KeyboardInterrupt
        return measure(self, candidates, sample_indices)

    monkeypatch.setattr(judging.JudgeLosses, "measure_losses", measure_twice)
    with pytest.raises(KeyboardInterrupt):
        search()
    resumed_search = search()

    log.unlink()
    assert resumed_search == search()


@pytest.mark.parametrize("member", ["random", "given", "repeat", "taylor"])
def test_a_member_that_proposes_no_sets_is_refused(member: str) -> None:
    with pytest.raises(LaminaError, match="proposes no sets"):
        portfolio_options(members=[member])


def test_members_that_propose_whole_layers_are_refused_among_sublayers() -> None:
    with pytest.raises(LaminaError, match="whole layers only"):
        portfolio_options(units="mlp")
    with pytest.raises(LaminaError, match="moves whole layers. Write units: layer"):
        portfolio_options(units="both", members=["rearrange"])


def test_a_portfolio_reruns_if_the_code_of_a_member_changes() -> None:
    assert portfolio_options(units="mlp", members=["perplexity"]).modules == (
        "lamina.selection.strategies.portfolio",
        "lamina.relevance.metrics.answers",
        "lamina.relevance.metrics.streams",
    )


@pytest.mark.parametrize("depth", [6, 9])
def test_the_rounds_of_a_portfolio_are_a_sweep_and_a_tournament(depth: int) -> None:
    units = all_units(depth, "layer")
    space = SearchSpace(units, [2], UnitPrices())

    rounds = list(portfolio.foresee_rounds(space, portfolio_options()))

    swept_sizes = [len(candidate.edits) for candidate in rounds[0].candidates]
    assert swept_sizes == [0] + [1] * depth
    judged_rounds = [search_round for search_round in rounds if search_round.is_judging]
    assert sum(search_round.share for search_round in judged_rounds) == 1
    measured_sets = {candidate.edits for candidate in judged_rounds[0].candidates}
    assert measured_sets <= {frozenset(pair) for pair in combinations(units, 2)}
    assert len(measured_sets) > 4


def test_the_work_of_a_portfolio_has_that_of_its_repairs() -> None:
    options = portfolio_options(repairs=["ghost"])
    tokens = {"own": count_tokens(random_calibration().samples)}
    model = SearchedModel(6, 32, 4000)

    bare_work = search_work("own", tokens, model, [2], options, {})
    work = search_work("own", tokens, model, [2], options, {"ghost": ghost_options()})

    assert not bare_work.patch_flops
    assert work.patch_flops
    assert work.naive_layer_tokens > bare_work.naive_layer_tokens
