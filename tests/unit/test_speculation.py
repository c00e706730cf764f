"""Drafts lose nothing: what is written with one is what the base writes alone."""

import itertools
from random import Random

import pytest
import torch
from scipy.stats import chi2
from transformers import PreTrainedModel

from lamina.evaluation import speculation
from lamina.evaluation.speculation import Decoding, written
from lamina.models.boundary import Patch
from lamina.models.materialise import materialise
from tests.unit import tiny

PROMPTS = [row.tolist() for row in tiny.tokens(20, 7)]


def variant(base: PreTrainedModel, *units: str) -> PreTrainedModel:
    return materialise(base, {"units": list(units)})


@torch.no_grad()
def likeliest(model: PreTrainedModel, prompt: list[int], tokens: list[int]) -> list[int]:
    """What greedy decoding without a cache writes, if it has written `tokens` so far: the argmax behind each prefix."""
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize(("family", "prompts"), [("llama", 20), *((f, 3) for f in ("gemma3_text", "gpt2", "bloom"))])
def test_prompts_get_the_bases_tokens(family: str, prompts: int) -> None:
    """Gemma's window of six tokens is shorter than the prompts; one draft lost an attention, one is patched."""
    base = tiny.model(family)
    drafts = [variant(base, "1", "2"), variant(base, "0.attention", "3")]
    operator = torch.randn(32, 32, generator=torch.Generator().manual_seed(1)) / 20
    drafts.append(materialise(base, {"units": ["2"]}, {(2, 3): Patch(operator)}))
    how = Decoding(8, draft=3)
    for number, prompt in enumerate(PROMPTS[:prompts]):
        found = written(base, prompt, how, 0, drafts[number % 3]).tokens
        assert found == likeliest(base, prompt, found) and len(found) == 8


def test_writing_ends_behind_the_first_end_with_a_draft_as_without() -> None:
    base = tiny.model()
    draft = variant(base, "1")
    for prompt in PROMPTS[:3]:
        whole = written(base, prompt, Decoding(10), 0).tokens
        assert whole == likeliest(base, prompt, whole)
        how = Decoding(10, ends=frozenset(whole[5:7]), draft=4)
        expected = whole[: min(place for place, token in enumerate(whole) if token in how.ends) + 1]
        assert written(base, prompt, how, 0).tokens == written(base, prompt, how, 0, draft).tokens == expected


def test_the_base_as_its_own_draft_has_all_its_tokens_accepted() -> None:
    base = tiny.model()
    found = written(base, PROMPTS[0], Decoding(13, draft=3), 0, base)
    assert (found.rounds, found.proposed) == (3, 12)
    text = [*PROMPTS[0], *written(base, PROMPTS[0], Decoding(13), 0).tokens]
    for temperature in (None, 0.7):
        assert speculation.overlap(base, base, text, 7, temperature).tolist() == pytest.approx([1.0] * 13)


def test_acceptance_is_agreement_or_the_common_mass_of_both_distributions() -> None:
    base, text = tiny.model(), PROMPTS[0]
    draft = variant(base, "3")
    with torch.no_grad():
        p, q = (model(input_ids=torch.tensor([text])).logits[0, 2:-1].double() for model in (base, draft))
    agreed = [float(one.argmax() == other.argmax()) for one, other in zip(p, q, strict=True)]
    assert speculation.overlap(base, draft, text, 3, None).tolist() == agreed
    p, q = (each / 2 - (each / 2).logsumexp(-1, keepdim=True) for each in (p, q))
    common = [1 - (one.exp() - other.exp()).abs().sum().item() / 2 for one, other in zip(p, q, strict=True)]
    assert speculation.overlap(base, draft, text, 3, 2.0).tolist() == pytest.approx(common, abs=1e-5)


def test_a_verified_token_has_the_bases_distribution_whatever_the_draft() -> None:
    """Every way through one round of one token, on a grid of numbers: 4 tokens, exact to the grid."""
    p, q = torch.tensor([0.5, 0.1, 0.4, 0.0]), torch.tensor([0.1, 0.6, 0.1, 0.2])
    grid = [(number + 0.5) / 40 for number in range(40)]
    got = torch.zeros(4)
    for token, first, second in itertools.product(range(4), grid, grid):
        kept, own = speculation.verify(torch.stack([p, p]), [q], [token], iter([first, second]).__next__)
        got[token if kept else own] += q[token] / len(grid) ** 2
    assert got.tolist() == pytest.approx(p.tolist(), abs=0.03)
    left = [0.4 / 0.7, 0.0, 0.3 / 0.7, 0.0]  # max(p - q, 0), normalised
    drawn = [speculation.verify(torch.stack([p, p]), [q], [3], iter([0.5, number]).__next__)[1] for number in grid]
    assert [drawn.count(token) / 40 for token in range(4)] == pytest.approx(left, abs=1 / 40)


def test_sampled_texts_have_the_bases_distribution() -> None:
    """Two tokens behind one prompt, of a vocabulary of 5: 25 outcomes, counted against their chances."""
    base = tiny.model(depth=2, vocab_size=5, seed=6, hidden_size=16, intermediate_size=16)
    draft, prompt, how = variant(base, "0"), [4, 1, 4], Decoding(2, temperature=0.5, draft=2)
    with torch.no_grad():
        first = (base(input_ids=torch.tensor([prompt])).logits[0, -1].double() / 0.5).softmax(-1)
        rows = [base(input_ids=torch.tensor([[*prompt, token]])).logits[0, -1] for token in range(5)]
    chances = first[:, None] * (torch.stack(rows).double() / 0.5).softmax(-1)
    helped = speculation.overlap(base, draft, [*prompt, 0, 1], 3, 0.5).mean()
    assert 0.2 < helped < 0.9  # the draft is neither the base nor always wrong
    draws = 300
    counts = torch.zeros(5, 5, dtype=torch.double)
    random = Random(7)
    for _ in range(draws):
        one, two = written(base, prompt, how, random.getrandbits(32), draft).tokens
        counts[one, two] += 1
    expected = chances * draws
    common = expected >= 3
    statistic = float((((counts - expected) ** 2 / expected)[common]).sum())
    assert common.sum() >= 8
    assert statistic < chi2.ppf(0.999, int(common.sum()))
