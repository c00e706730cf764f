"""The portfolio: members propose, other documents decide; against sets tried one by one and models really cut."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples, Sample, build_calibration
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina.options.selectors import Selector
from lamina.selection import judging, tournament
from lamina.selection.options import Loop
from lamina.selection.plans import UnitPrices
from lamina.selection.sets import SearchRequest
from lamina.selection.strategies import pairwise, portfolio
from lamina.selection.tournament import EXCHANGE, NONE, JudgeDocuments, Tournament
from lamina.selection.trials import Trials
from lamina_workflow.cost.estimate import count_tokens
from lamina_workflow.cost.rehearsal import CountingRehearsal, SearchedModel
from tests.engine.test_sweep import naive, random_samples
from tests.given import tiny
from tests.selection.test_loop import options as ghost_options
from tests.selection.test_search import SAMPLES, UNITS, Toy

KEYS = {"model": "m", "calibration": "c", "selector": "s"}
Sets = Mapping[int, Mapping[str, frozenset[str]]]


def bare(sets: Iterable[frozenset[str]]) -> dict[frozenset[str], dict[str, Candidate]]:
    return {units: {NONE: Candidate(units)} for units in sets}


def decided(
    toy: Any, proposals: Sets, exchanges: int = 10, judges: JudgeDocuments | None = None
) -> Any:
    judges = judges or JudgeDocuments([np.random.default_rng(0).permutation(SAMPLES)], [1.0])
    scores = dict(zip(UNITS, Toy().alone, strict=True))
    contest = Tournament(Trials(toy, SAMPLES), judges, bare)
    contest.play(
        proposals,
        lambda units: tournament.exchange_units(units, UNITS, scores, exchanges, UnitPrices()),
    )
    return contest.choose(0), contest.rows


def proposed(*sizes: int) -> dict[int, dict[str, frozenset[str]]]:
    draw = np.random.default_rng(3)
    return {
        size: {name: frozenset(draw.permutation(UNITS)[:size].tolist()) for name in "abc"}
        for size in sizes
    }


def test_the_winner_is_the_best_of_all_that_was_measured_and_others_are_compared_on_the_same_documents() -> (
    None
):
    """Without noise a quarter of the documents ranks as all do, so nothing better may have left."""
    toy = Toy(1)
    toy.noise[:] = 0
    proposals = proposed(2, 4)
    choices, rows = decided(toy, proposals)
    for size, choice in choices.items():
        tried = {frozenset(row["units"]) for row in rows if row["removed"] == size}
        assert set(proposals[size].values()) < tried
        assert (
            toy.mean(choice["units"])
            == pytest.approx(min(map(toy.mean, tried)))
            == pytest.approx(choice["loss"])
        )
        for member, told in choice["members"].items():
            assert frozenset(told["units"]) == proposals[size][member]
            assert told["loss"] == pytest.approx(toy.mean(told["units"]))
            assert (
                told["more"] == pytest.approx(toy.mean(told["units"]) - choice["loss"])
                and told["more"] > -1e-12
            )
        assert choice["member"] in (*proposals[size], EXCHANGE) and choice["repair"] == NONE


def test_few_documents_come_first_and_no_answer_is_asked_for_twice() -> None:
    toy = Toy(2)
    choices, rows = decided(toy, proposed(3))
    assert len(set(toy.asked)) == len(toy.asked), "measured twice"
    stages = {stage: [row for row in rows if row["stage"] == stage] for stage in "123"}
    assert [len(stages[stage]) for stage in "23"] == [8, 4] and len(stages["1"]) > 8
    assert [rows[0]["n_samples"] for rows in stages.values()] == [10, 20, 40]
    for before, after in (("1", "2"), ("2", "3")):
        stayed = {tuple(row["units"]) for row in stages[before] if row["kept"]}
        assert stayed == {tuple(row["units"]) for row in stages[after]}
        worst = max(row["loss"] for row in stages[before] if row["kept"])
        assert all(row["loss"] >= worst for row in stages[before] if not row["kept"])
    assert sum(row["n_new"] for row in rows) == len(toy.asked)
    assert choices[3]["n_samples"] == SAMPLES


def test_a_size_that_is_worse_than_a_larger_one_says_so() -> None:
    class Best(Toy):
        def values(self, removed: Iterable[str]) -> np.ndarray:
            return np.full(SAMPLES, 5.0 if len(list(removed)) == 3 else 7.0)

    choices, _ = decided(Best(), proposed(2, 3, 4))
    assert (
        "At size 3" in choices[2]["note"] and "note" not in choices[3] and "note" not in choices[4]
    )


def test_exchanges_change_one_unit_and_begin_with_the_most_promising() -> None:
    scores = {unit: float(unit) for unit in UNITS}
    found = tournament.exchange_units(frozenset({"3", "8"}), UNITS, scores, 7, UnitPrices())
    assert found[0] == {"3", "0"} and len(set(found)) == 7
    assert all(len(each & {"3", "8"}) == 1 and len(each) == 2 for each in found)
    assert (
        len(tournament.exchange_units(frozenset({"3", "8"}), UNITS, scores, 99, UnitPrices()))
        == 2 * 8
    )


def test_the_corrected_loss_is_not_flattered() -> None:
    """Twenty sets of one true loss: the least mean lies far below it, the corrected one about it."""
    draw, least, honest = np.random.default_rng(0), [], []
    for study in range(60):
        losses = draw.normal(1, 1, (20, 80))
        judges = JudgeDocuments([draw.permutation(80)], [1.0])
        least.append(losses.mean(axis=1).min())
        honest.append(tournament.correct_loss(list(losses), judges, study))
    error = 1 / np.sqrt(40 * 60)
    assert abs(np.mean(honest) - 1) < 4 * error and np.mean(least) < 1 - 6 * error


def chosen(**values: Any) -> Any:
    told = {
        "strategy": "portfolio",
        "members": ["block", "clusters", "cosine", "perplexity"],
        "exchanges": 4,
    }
    return Selector.from_options(told | values)


def given(count: int = 24, seed: int = 0) -> CalibrationSamples:
    return build_calibration(
        random_samples(seed, count=count), 100, source="test", split="test", seed=0
    )


def test_documents_that_choose_and_that_judge_are_different() -> None:
    calibration = given()
    # A repair may be fitted on text that judges too.
    _, judges = judging.split_documents(
        {"own": calibration, "text": given(20, 9)}, chosen(also={"text": 1.0})
    )
    assert len(judges["text"]) == 10
    twice = CalibrationSamples((*calibration.samples, *calibration.samples[:6]), calibration.facts)
    beside = CalibrationSamples((*given(6, 5).samples, *calibration.samples), calibration.facts)
    for options in (
        chosen(held_back=0.5),
        chosen(held_back=0.3, also={"text": 0.5}),
        chosen(judge="text"),
    ):
        choosing, judges = judging.split_documents({"own": twice, "text": beside}, options)
        chose = {sample.sequence() for sample in choosing.samples}
        for part in judges.values():
            assert part and not chose & {sample.sequence() for sample in part}
        assert list(judges) == (["text"] if options.judge else ["own", *options.also])
        if options.judge:
            assert len(choosing.samples) == 30 and len(judges["text"]) == 6
    with pytest.raises(LaminaError, match="'text' has no document"):
        judging.split_documents({"own": calibration, "text": calibration}, chosen(judge="text"))


def nats(model: PreTrainedModel, samples: Sequence[Sample]) -> np.ndarray:
    """Loss of the right answer of every sample, one row at a time."""
    gold = np.cumsum([0, *(len(sample.rows) for sample in samples[:-1])]) + [
        sample.gold for sample in samples
    ]
    return -naive(model, list(samples), [])[gold]


def test_whole_sets_are_measured_as_models_really_cut_and_repaired(tmp_path: Path) -> None:
    """Every row of the search, bare and with the patch, against a materialised model; text counts per token."""
    model, own, text = tiny.model(depth=6), given(40), given(12, 7)
    calibrations = {"c": own, "text": text}
    options = chosen(held_back=0.5, also={"text": 0.5}, repairs=["ghost"], protect=[0])
    loops = {
        "ghost": Loop(
            repair=ghost_options(), weights=[("c", 1.0), ("text", 0.1)], protect=[0], seed=0
        )
    }
    request = SearchRequest(
        model, calibrations, options, [1, 2], KEYS, "acc", 4000, loops=loops, log=tmp_path / "l"
    )
    plans, rows = judging.search_plans(request)
    choosing, judges = judging.split_documents(calibrations, options)
    held = [sample.sequence() for part in judges.values() for sample in part]
    form = judging.RepairedSets(
        model, calibrations, [each.sequence() for each in choosing.samples], held, loops
    )
    last = [row for row in rows if row["stage"] == "3"]
    assert {row["repair"] for row in last} == {"none", "ghost"} and len(
        {tuple(row["units"]) for row in last}
    ) > 3
    for row in last:
        patches = form([frozenset(row["units"])])[frozenset(row["units"])][row["repair"]].patches
        cut = materialise(model, {"units": row["units"]}, patches or None)
        task, other = nats(cut, judges["c"]), nats(cut, judges["text"])
        tokens = [len(sample.rows[sample.gold].continuation) for sample in judges["text"]]
        assert row["loss"] == pytest.approx(task.mean() + 0.5 * (other / tokens).mean(), abs=2e-3)
    for plan in plans:
        ends = [row for row in last if row["removed"] == plan.removed]
        best = min(ends, key=lambda row: row["loss"])
        assert plan.choice["loss"] == best["loss"] and set(plan.units) == set(best["units"])
        assert (
            plan.choice["repair"] == best["repair"]
            and "0" not in plan.units
            and len(plan.units) == plan.removed
        )
        assert plan.choice["repairs"].keys() == {"none", "ghost"}
    (base,) = [row for row in rows if row["strategy"] == "none" and row["stage"] == "winner"]
    own_loss, text_loss = nats(model, judges["c"]), nats(model, judges["text"])
    assert base["loss"] == pytest.approx(
        own_loss.mean() + 0.5 * (text_loss / tokens).mean(), abs=2e-3
    )


def test_members_propose_what_their_own_ways_say() -> None:
    """From the choosing documents alone: the lowest single losses, and the run with the smallest distance."""
    model, calibration = tiny.model(depth=6), given(16)
    units = all_units(6, "layer")
    sets, _ = judging.propose_sets(
        SearchRequest(model, {}, chosen(), [2, 3], KEYS, "acc", 4000), calibration
    )
    alone = {
        unit: nats(materialise(model, {"units": [unit]}), calibration.samples).mean()
        for unit in units
    }
    lowest = sorted(units, key=lambda unit: alone[unit])
    assert sets[2]["perplexity"] == set(lowest[:2]) and sets[3]["perplexity"] == set(lowest[:3])
    sequences = [torch.tensor([sample.sequence()]) for sample in calibration.samples]
    streams = [tiny.stream(model, ids, layers_of(model)) for ids in sequences]
    far = {
        start: np.mean(
            [
                float((1 - torch.cosine_similarity(k[start], k[start + 3], dim=-1)).mean())
                for k in streams
            ]
        )
        for start in range(4)
    }
    first = min(far, key=lambda start: far[start])
    assert sets[3]["block"] == {str(layer) for layer in range(first, first + 3)}
    assert set(sets[2]) == {"block", "clusters", "cosine", "perplexity"}


def test_a_search_may_be_a_member_and_proposes_what_it_finds_alone() -> None:
    model, calibration = tiny.model(depth=5), given(12)
    options = chosen(members=["perplexity", "pairwise"])
    sets, _ = judging.propose_sets(
        SearchRequest(model, {}, options, [2, 3], KEYS, "acc", 4000), calibration
    )
    units = all_units(5, "layer")
    every = [frozenset(some) for size in range(3) for some in combinations(units, size)]
    losses = {
        each: nats(
            materialise(model, {"units": sorted(each)} if each else None), calibration.samples
        )
        for each in every
    }
    alone, together = pairwise.estimate_effects(losses, units)
    for size in (2, 3):
        assert sets[size]["pairwise"] == {
            units[number] for number in pairwise.minimise(alone, together, size)
        }


def test_a_killed_search_goes_on_to_the_same_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calibration, log = tiny.model(depth=5), given(20), tmp_path / "search.log"

    def run() -> Any:
        request = SearchRequest(
            model, {"c": calibration}, chosen(), [1, 2], KEYS, "acc", 4000, log=log
        )
        plans, rows = judging.search_plans(request)
        return plans, [
            {key: value for key, value in row.items() if key != "layer_tokens"} for row in rows
        ]

    measured, asked = judging.JudgeLosses.losses, []

    def killed(self: Any, candidates: Any, numbers: Any) -> np.ndarray:
        asked.append(len(list(candidates)))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return measured(self, candidates, numbers)

    monkeypatch.setattr(judging.JudgeLosses, "measure_losses", killed)
    with pytest.raises(KeyboardInterrupt):
        run()
    again = run()
    log.unlink()
    assert run() == again


def test_nothing_that_proposes_no_sets_is_a_member() -> None:
    for members in (["random"], ["deepest"], ["taylor"]):
        with pytest.raises(LaminaError, match="proposes no sets"):
            chosen(members=members)
    with pytest.raises(LaminaError, match="whole layers only"):
        chosen(units="mlp")
    assert chosen(units="mlp", members=["perplexity"]).modules == (
        "lamina.selection.strategies.portfolio",
        "lamina.relevance.metrics.answers",
        "lamina.relevance.metrics.streams",
    )


@pytest.mark.parametrize("depth", [6, 9])
def test_a_rehearsal_sweeps_and_asks_for_each_set_bare_and_repaired(depth: int) -> None:
    asked: list[Candidate] = []
    swept: list[str] = []

    class Recorded(CountingRehearsal):
        def measure_losses(
            self, candidates: Sequence[Candidate], numbers: Iterable[int]
        ) -> np.ndarray:
            numbers = list(numbers)
            assert not set(numbers) & set(self.choosing.tolist()), "what chose does not judge"
            asked.extend(candidate for candidate in candidates for _ in numbers)
            return super().measure_losses(candidates, numbers)

        def count_sweep(self, kind: str) -> None:
            swept.append(kind)
            super().count_sweep(kind)

    options, tokens = chosen(repairs=["ghost"]), count_tokens(given().samples)
    model = SearchedModel(depth, 32, 4000)
    rehearsal = Recorded("own", {"own": tokens}, model, options, {"ghost": ghost_options()})
    units = all_units(depth, "layer")
    portfolio.rehearse(rehearsal, units, [2], options)
    assert swept == ["layer"]
    pairs = {each.removed for each in asked}
    assert pairs <= {frozenset(pair) for pair in combinations(units, 2)} and len(pairs) > 4
    assert sum(bool(each.patches) for each in asked) == len(asked) / 2
    assert rehearsal.work.layer_tokens and rehearsal.work.patch_flops
