"""Theorem 1 of arXiv 2605.14075, built: the layer that turns the stream least is the one that the
answers hang on.

A decoder of real transformers modules, its weights set by hand. Channel 0 of the stream is 1 for
every token, and channel 1 holds the answer's sign t as -δt, which is wrong. Layer 0 turns it into
+δt, at cosine (1 - δ²) / (1 + δ²), and layer 1 makes that large (the snowball); layers 2 and 3
write much where nobody reads. Attention adds nothing.
"""

import copy

import pytest
import torch
from torch.nn.functional import silu
from transformers import LlamaConfig, LlamaForCausalLM

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.models.surgery import remove_units
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet

N_CHANNELS = 8
SIGN_OF_TOKEN = {4: 1.0, 5: -1.0, 6: 1.0, 7: -1.0}
"""Tokens 4 and 5 ask, 6 and 7 answer."""


@torch.no_grad()
def decoder(delta: float) -> LlamaForCausalLM:
    """Four layers; an MLP neuron whose gate reads the constant multiplies what its up projection
    reads.
    """
    shape = dict(
        vocab_size=8,
        hidden_size=N_CHANNELS,
        intermediate_size=1,
        num_attention_heads=2,
        num_hidden_layers=4,
    )
    model = LlamaForCausalLM(
        LlamaConfig(**shape, tie_word_embeddings=False, rms_norm_eps=1e-12)
    ).eval()
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if "norm" in name else 0.0)
    embedding = model.model.embed_tokens.weight
    head = model.lm_head.weight
    embedding[:, 0] = 1
    for token, sign in SIGN_OF_TOKEN.items():
        embedding[token, 1] = -delta * sign
    head[6, 1] = 1
    head[7, 1] = -1
    scale = ((1 + delta**2) / N_CHANNELS) ** 0.5  # of the norm before layers 0 and 1
    linear = scale / silu(torch.tensor(1 / scale))
    for layer, (reads, writes, factor) in enumerate(
        [(1, 1, -2 * linear), (1, 1, linear / delta), (0, 2, 0.6), (0, 3, 3.0)]
    ):
        mlp = model.model.layers[layer].mlp
        mlp.gate_proj.weight[0, 0] = mlp.up_proj.weight[0, reads] = 1
        mlp.down_proj.weight[writes, 0] = factor
    return model


@torch.inference_mode()
def accuracy(model: LlamaForCausalLM, samples: list[Sample]) -> float:
    """Share of right answers, one forward pass per question."""
    right = [
        int(model(torch.tensor([sample.rows[0].context])).logits[0, -1].argmax())
        == sample.rows[sample.gold].continuation[0]
        for sample in samples
    ]
    return sum(right) / len(right)


@pytest.mark.parametrize("delta", [0.1, 0.003])
def test_the_layer_of_least_cosine_is_the_one_that_takes_accuracy_from_one_to_zero(
    delta: float,
) -> None:
    model = decoder(delta)
    samples = []
    for number in range(20):
        context = (1, 4 + number % 2)
        rows = tuple(Row(context, (answer,), 1) for answer in (6, 7))
        samples.append(Sample(number, "choices", number % 2, rows, str(number)))
    assert accuracy(model, samples) == 1
    assert [accuracy(remove_units(copy.deepcopy(model), [unit]), samples) for unit in "0123"] == [
        0,
        1,
        1,
        1,
    ]

    rows = sweep.sweep_units(model, samples, list("0123")).rows(["none", *"0123"])
    table = parquet.from_rows("sweeps", rows)
    scores: dict[str, list[float]] = {"accuracy": [], "cosine": []}
    ranks: dict[str, list[int]] = {"accuracy": [], "cosine": []}
    for row in score_sweep(table, ["accuracy", "cosine"], Context(0.5, "acc_norm"), 0):
        scores[row["metric"]].append(row["score"])
        ranks[row["metric"]].append(row["rank"])
    assert ranks["accuracy"][0] == 4
    assert ranks["cosine"][0] == 1
    assert scores["accuracy"] == [1, 0, 0, 0]
    # Two of the three tokens of a sample carry a sign; the first has none and is not turned.
    least_cosine = 2 / 3 * (1 - (1 - delta**2) / (1 + delta**2))
    assert scores["cosine"][0] == pytest.approx(least_cosine, rel=0.02)
    assert min(scores["cosine"][1:]) > 0.1
