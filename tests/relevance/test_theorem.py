"""Theorem 1 of arXiv 2605.14075: the layer that turns the stream least decides the answers.

A decoder of real transformers modules has its weights set by hand. Channel 0 of the stream is 1 for
every token, and channel 1 holds the answer's sign t as -δt, which is wrong. Layer 0 turns it into
+δt, at cosine (1 - δ²) / (1 + δ²), and layer 1 makes that large (the snowball). Layers 2 and 3
write much into channels that nothing reads. Attention adds nothing.
"""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import silu
from transformers import LlamaConfig, LlamaForCausalLM

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep
from lamina.models.surgery import apply_edits
from lamina.relevance.columns import Context
from lamina.relevance.score import score_sweep
from lamina.store import parquet

N_CHANNELS = 8
SIGN_OF_TOKEN = {4: 1.0, 5: -1.0, 6: 1.0, 7: -1.0}
"""Tokens 4 and 5 ask, 6 and 7 answer."""


@dataclass(frozen=True)
class Neuron:
    """The one neuron of an MLP: it scales what it reads from a channel and adds it to a channel."""

    input_channel: int
    output_channel: int
    factor: float


@torch.no_grad()
def build_decoder(delta: float) -> LlamaForCausalLM:
    """Four layers; the gate of each neuron reads channel 0, which is constant."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=N_CHANNELS,
        intermediate_size=1,
        num_attention_heads=2,
        num_hidden_layers=4,
        tie_word_embeddings=False,
        rms_norm_eps=1e-12,
    )
    model = LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        weight.fill_(1.0 if "norm" in name else 0.0)
    embedding = model.model.embed_tokens.weight
    head = model.lm_head.weight
    embedding[:, 0] = 1
    for token, sign in SIGN_OF_TOKEN.items():
        embedding[token, 1] = -delta * sign
    head[6, 1] = 1
    head[7, 1] = -1
    norm_scale = ((1 + delta**2) / N_CHANNELS) ** 0.5  # before layers 0 and 1
    unit_factor = float(norm_scale / silu(torch.tensor(1 / norm_scale)))
    neurons = [
        Neuron(1, 1, -2 * unit_factor),
        Neuron(1, 1, unit_factor / delta),
        Neuron(0, 2, 0.6),
        Neuron(0, 3, 3.0),
    ]
    for layer, neuron in zip(model.model.layers, neurons, strict=True):
        layer.mlp.gate_proj.weight[0, 0] = 1
        layer.mlp.up_proj.weight[0, neuron.input_channel] = 1
        layer.mlp.down_proj.weight[neuron.output_channel, 0] = neuron.factor
    return model


@torch.inference_mode()
def accuracy(model: LlamaForCausalLM, samples: list[Sample]) -> float:
    """Share of right answers, one forward pass per question."""
    n_right = 0
    for sample in samples:
        logits = model(torch.tensor([sample.rows[0].context])).logits[0, -1]
        gold_token = sample.rows[sample.gold].continuation[0]
        n_right += int(logits.argmax()) == gold_token
    return n_right / len(samples)


def draw_questions() -> list[Sample]:
    """Twenty questions with tokens 4 and 5 in turn, to be answered with 6 or 7."""
    samples: list[Sample] = []
    for index in range(20):
        context = (1, 4 + index % 2)
        rows = (Row(context, (6,), 1), Row(context, (7,), 1))
        samples.append(Sample(index, "choices", index % 2, rows, str(index)))
    return samples


@pytest.mark.parametrize("delta", [0.1, 0.003])
def test_the_layer_of_least_cosine_is_the_one_that_takes_accuracy_from_one_to_zero(
    delta: float,
) -> None:
    model = build_decoder(delta)
    samples = draw_questions()
    units = ["0", "1", "2", "3"]
    assert accuracy(model, samples) == 1
    accuracies: list[float] = []
    for unit in units:
        cut_model = apply_edits(copy.deepcopy(model), [unit])
        accuracies.append(accuracy(cut_model, samples))
    assert accuracies == [0, 1, 1, 1]

    rows = sweep.sweep_units(model, samples, units).rows(["none", *units])
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
