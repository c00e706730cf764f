"""Blocks that run again: every one is tried, a planted one is found, and gains have an error."""

import numpy as np
import pytest

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.errors import LaminaError
from lamina.options.selectors import Selector
from lamina.selection.evaluator import Evaluator
from lamina.selection.plans import UnitPrices
from lamina.selection.rounds import SearchSpace
from lamina.selection.strategies import repeat
from lamina.selection.trials import Search, Trials, run_search
from tests.given import tiny
from tests.given.edited_models import hold_path
from tests.selection.examples import N_SAMPLES, UNITS, toy_search
from tests.selection.test_rearrange import N_TEXTS, texts_written_by


def options(**settings: object) -> repeat.Repeat:
    made = Selector.from_options({"strategy": "repeat", "metric": "perplexity", **settings})
    assert isinstance(made, repeat.Repeat)
    return made


class RepeatedLosses:
    """The base model costs 5 and a noise by sample; every edit has a gain of its own."""

    def __init__(self, gain_by_edit: dict[str, float]) -> None:
        generator = np.random.default_rng(0)
        self.gain_by_edit = gain_by_edit
        self.base_losses = 5 + generator.normal(size=N_SAMPLES)
        self.noise_by_edit = {
            edit: generator.normal(0, 0.1, N_SAMPLES) for edit in sorted(gain_by_edit)
        }

    def measure_losses(self, candidates: list[Candidate], sample_indices: object) -> np.ndarray:
        losses: list[np.ndarray] = []
        for candidate in candidates:
            candidate_losses = self.base_losses.copy()
            for edit in candidate.edits & self.gain_by_edit.keys():
                candidate_losses += self.noise_by_edit[edit] - self.gain_by_edit[edit]
            losses.append(candidate_losses[np.asarray(sample_indices)])
        return np.array(losses)


def test_a_block_that_a_model_lacks_is_found() -> None:
    shallow = tiny.model("llama")
    samples = texts_written_by(hold_path(shallow, [0, 1, 2, 3, 2, 3, 4]))
    with sweep.open_session(shallow, samples, 4000, outputs=False) as session:
        trials = Trials(Evaluator(session, "perplexity", "acc"), N_TEXTS)
        search = Search("repeat", trials, np.arange(N_TEXTS))
        found = repeat.find(search, [str(layer) for layer in range(5)], [-1, -2], options())

    assert found[-2].edits == {"2-3x2"}
    assert [UnitPrices().size_of(found[size].edits) for size in (-1, -2)] == [-1, -2]


def test_every_block_of_a_size_is_tried() -> None:
    search = toy_search(RepeatedLosses({"3x3": 1.0}))
    found = repeat.find(search, UNITS, [-2], options(times=3, damped=True))
    tried = {unit for row in search.rows for unit in row["units"]}
    blocks = {f"{first}-{first + 1}x2" for first in range(9)} | {
        f"{layer}x3" for layer in range(10)
    }
    assert tried == blocks | {f"{block}~" for block in blocks}
    assert found[-2].edits == {"3x3"}


def test_protected_layers_do_not_run_again() -> None:
    search = toy_search(RepeatedLosses({}))
    repeat.find(search, ["1", "2", "3", "7"], [-2], options())
    assert [row["units"] for row in search.rows] == [[], ["1-2x2"], ["2-3x2"]]


def test_gains_are_measured_against_the_base_model_sample_by_sample() -> None:
    losses = RepeatedLosses({"4x2": 0.5, "6x2": 0.2})
    chosen = np.arange(30)
    others = np.arange(30, N_SAMPLES)
    trials = Trials(losses, N_SAMPLES)
    result = run_search(trials, UNITS, [-1], options(), chosen, others)
    for samples, stage in ((chosen, "1"), (others, "held back")):
        [row] = [row for row in result.rows if row["units"] == ["4x2"] and row["stage"] == stage]
        gains = losses.noise_by_edit["4x2"][samples] - 0.5
        assert row["change"] == pytest.approx(gains.mean())
        assert row["change_stderr"] == pytest.approx(gains.std(ddof=1) / len(samples) ** 0.5)


def test_the_forecast_measures_what_the_search_measures() -> None:
    search = toy_search(RepeatedLosses({}))
    repeat.find(search, UNITS, [-1, -3], options(damped=True))
    space = SearchSpace(UNITS, [-1, -3], UnitPrices())
    rounds = repeat.foresee_rounds(space, options(damped=True))
    assert sum(len(a_round.candidates) for a_round in rounds) == len(search.rows)


def test_every_allowed_size_has_a_block() -> None:
    selector = options(times=4, protect=[2, 9])
    sizes = selector.allowed_sizes(10)
    assert sizes == range(-6, 0)
    free_layers = [unit for unit in UNITS if unit not in ("2", "9")]
    found = repeat.find(toy_search(RepeatedLosses({})), free_layers, sizes, selector)
    assert found.keys() == set(sizes)


def test_sub_layers_do_not_run_again() -> None:
    with pytest.raises(LaminaError, match=r"runs whole layers again. Write units: layer"):
        options(units="mlp")
