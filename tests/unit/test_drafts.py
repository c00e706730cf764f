"""What is measured of variants as drafts: acceptance, tokens of a round, costs, and where speculation pays."""

import math
from pathlib import Path

import pytest
import torch

from lamina.config.benchmarks import Drafts
from lamina.errors import LaminaError
from lamina.evaluation import drafts
from lamina.evaluation.speculation import Decoding, written
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from lamina.stages.benchmark_drafts import BenchmarkDrafts
from lamina.stages.gather_table import parts
from lamina.store import parquet as store
from lamina.study import requests as studies
from lamina.study.load import load
from lamina.study.variant import Variant
from tests.unit import tiny
from tests.unit.configurations import minimal, put, workplace
from tests.unit.scripts import place

OPTIONS = Drafts(text="words", prompts=4, prompt=5, tokens=6, draft=2)
ASKED = [row.tolist() for row in tiny.tokens(4, 5)]


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, dict]]:
    """Of the base as its own draft and of a patched variant, by name and decoding."""
    base = tiny.model()
    patched = materialise(base, {"units": ["1"]}, {(1, 2): Patch(torch.zeros(32, 32))})
    named = {"itself": base, "patched": patched}
    keys = {name: Variant("tiny", "words", name, number).row() for number, name in enumerate(named)}
    found = drafts.measure(base, ((keys[name], model) for name, model in named.items()), ASKED, OPTIONS)
    assert store.from_rows("drafts", found).num_rows == 4
    return {name: {row["decoding"]: row for row in found if row["selector"] == name} for name in named}


def test_the_base_as_its_own_draft_is_accepted_always_and_costs_what_it_costs(rows: dict) -> None:
    for row in rows["itself"].values():
        assert row["acceptance"] == pytest.approx(1) and row["acceptance_stderr"] == pytest.approx(0, abs=1e-6)
        assert (row["tokens_per_round"], row["tokens_per_round_expected"]) == pytest.approx((3, 3))
        assert row["extra_bytes"] == 0 and row["n_samples"] == 4
        assert row["cost"] > 0.1 and row["speedup"] > 0
    assert rows["itself"]["greedy"]["same"] == 4 and rows["itself"]["sampled"]["same"] is None


def test_acceptance_is_over_the_tokens_behind_the_first_and_prompts_are_clusters(rows: dict) -> None:
    base, found = tiny.model(), rows["patched"]["greedy"]
    draft = materialise(base, {"units": ["1"]})
    shares, rounds = [], []
    for prompt in ASKED:
        text = [*prompt, *written(base, prompt, Decoding(6, ends=frozenset([2]), draft=2), 0).tokens]
        with torch.no_grad():
            guesses = draft(input_ids=torch.tensor([text])).logits[0].argmax(-1).tolist()
        shares.append([guesses[place - 1] == text[place] for place in range(6, len(text))])
        helped = written(base, prompt, Decoding(6, ends=frozenset([2]), draft=2), 0, draft)
        rounds.append((helped.proposed, helped.rounds))
    total = sum(map(len, shares))
    mean = sum(map(sum, shares)) / total
    spread = math.sqrt(4 / 3 * sum((sum(each) - mean * len(each)) ** 2 for each in shares)) / total
    assert (found["acceptance"], found["acceptance_stderr"]) == pytest.approx((mean, spread))
    assert found["tokens_per_round"] == pytest.approx(sum(one for one, _ in rounds) / sum(two for _, two in rounds))
    assert found["same"] == 4 and found["tokens"] == total + 4
    assert found["extra_bytes"] == 32 * 32 * 4


def test_what_a_round_gives_and_when_it_pays() -> None:
    """The bounds of a quarter removed with α = .95, and of 60 % with α = .9, at the best number of drafted tokens."""
    for acceptance, cost, best in ((0.95, 0.75, 1.14), (0.9, 0.4, 1.58)):
        speeds = [drafts.expected_tokens(acceptance, g) / (g * cost + 1) for g in range(1, 20)]
        assert max(speeds) == pytest.approx(best, abs=0.006)
    assert drafts.expected_tokens(0.5, 2) == 1.75 and drafts.expected_tokens(1, 3) == 4
    found = drafts.break_even(3, 0.5, 1.2)
    assert found is not None and drafts.expected_tokens(found, 3) == pytest.approx(2.7)
    assert drafts.break_even(1, 0.25, 1.25) == pytest.approx(0.5)  # 1 + α = 1.5
    assert drafts.break_even(4, 1.0, 1.1) is None and drafts.break_even(1, 0.2, 0.7) == 0


def test_prompts_are_the_beginnings_of_documents_that_are_long_enough() -> None:
    texts = ["w1 w2 w3", *(" ".join(f"w{number + place}" for place in range(7)) for number in range(9))]
    found = drafts.prompts(texts, tiny.tokenizer(), OPTIONS)
    assert found == [tiny.tokenizer()(text)["input_ids"][:5] for text in texts[1:5]]
    with pytest.raises(LaminaError, match="benchmarks.drafts.prompt: 1 of the 2 documents of 'words'"):
        drafts.prompts(texts[:2], tiny.tokenizer(), OPTIONS)


def test_drafts_longer_than_the_context_are_refused() -> None:
    base = tiny.model("gpt2", n_positions=12)
    with pytest.raises(LaminaError, match=r"benchmarks.drafts .*: 13 tokens are more than the context"):
        drafts.measure(base, [], ASKED, OPTIONS)


def test_a_study_measures_its_deep_cuts_as_drafts_on_prompts_that_nothing_has_seen(tmp_path: Path) -> None:
    raw, root = minimal(), workplace(tmp_path)
    put(raw, "studies.prune.removed", [1, 2, 3])
    assert studies.draft_variants(load(raw, root), "small") == []
    config = load(put(raw, "benchmarks.drafts", {"text": "corpus_test", "removed": "25%"}), root)
    listed = studies.draft_variants(config, "small")
    assert {v.removed for v in listed} == {2, 3} and set(listed) < set(studies.variants(config))
    gates = {f"results/overlap/small/{v.calibration}/corpus_test.json" for v in listed}
    assert gates <= set(BenchmarkDrafts.of(config, place(model="small")).gate)
    assert parts(config, "drafts") == ["results/drafts/small.parquet"]


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ({"text": "corpus_tast"}, "benchmarks.drafts.text: 'corpus_tast' is not defined under `benchmarks.perplexity`"),
        (
            {"text": "corpus_test", "prompt": 20, "tokens": 41},
            r"benchmarks.drafts \(prompt \+ tokens \+ draft\): 65 tokens are more than the context of model",
        ),
        (
            {"text": "corpus_test", "prompt": 8, "tokens": 8, "removed": 7},
            "benchmarks.drafts.removed: no study removes 7 or more",
        ),
    ],
)
def test_prompts_that_are_not_there_or_do_not_fit_are_refused(drafts: dict, message: str, tmp_path: Path) -> None:
    raw = put(minimal(), "benchmarks.drafts", drafts)
    put(raw, "benchmarks.perplexity.corpus_test.window", 64)
    raw["benchmarks"].pop("efficiency", None)
    workplace(tmp_path)
    (tmp_path / "small/config.json").write_text('{"num_hidden_layers": 8, "n_positions": 64}')
    with pytest.raises(LaminaError, match=message):
        load(raw, tmp_path)
