"""A sweep of all layers of a real model: against lm-eval's loop, against the processor, and its memory.

    python benchmarks/real_model.py models/qwen-0.5b.gguf arc_easy_calibration.jsonl

lm-eval asks the base model and `--cuts` models without one layer, half of them before the engine's sweep and half
after it. Its time for all cut models is theirs on average times the number of layers.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from cases import peak_of
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

import lamina
from lamina.engine import memory, sweep
from lamina.models.boundary import share_weights
from lamina.models.load import load_tokenizer
from lamina.models.structure import layers_of
from lamina.models.surgery import apply_edits
from lamina.models.units import all_units
from lamina_workflow.cost.estimate import count_tokens

MATRIX = (512, 2048, 2048)  # rows, inner and outer: the size of a pass's products
REPEATS = 20


def seconds_of(work: Callable[[], object]) -> float:
    """Time that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak_rate(dtype: torch.dtype) -> float:
    """FLOP/s of a product of large matrices, the best of several."""
    n_rows, n_inner, n_outer = MATRIX
    left = torch.randn(n_rows, n_inner).to(dtype)
    right = torch.randn(n_inner, n_outer).to(dtype)
    fastest = min(seconds_of(lambda: left @ right) for _ in range(REPEATS))
    return 2 * n_rows * n_inner * n_outer / fastest


def measure(source: str, questions: str, n_questions: int, n_cuts: int) -> dict[str, Any]:
    """The times of both ways, the rate and the memory of the engine."""
    base = lamina.open_model(source, name="model")
    model: PreTrainedModel = base.model
    samples = lamina.prepare(base, "task", choices=questions, limit=n_questions).content.samples
    rows = [row for sample in samples for row in sample.rows]
    requests: list[Any] = [(("", ""), list(row.context), list(row.continuation)) for row in rows]
    longest = max(len(row.context + row.continuation) for row in rows)
    budget = memory.choose_token_budget("auto", model, samples, base.n_layers + 2)
    lm = HFLM(
        pretrained=model,
        tokenizer=load_tokenizer(base.manifest),
        batch_size=max(1, budget // base.n_layers // longest),
    )
    units = all_units(base.n_layers, "layer")
    spread = range(base.n_layers // n_cuts // 2, base.n_layers, base.n_layers // n_cuts)

    def ask(*removed: str) -> None:
        lm._model = apply_edits(share_weights(model), removed) if removed else model
        lm._loglikelihood_tokens(requests, disable_tqdm=True)

    def sweep_all() -> tuple[float, float]:
        began = time.perf_counter()
        with sweep.open_session(model, samples, budget, outputs=False) as session:
            session.sweep(units)
        return session.layer_tokens, time.perf_counter() - began

    cuts = [units[layer] for layer in spread][:n_cuts]
    cut_seconds = [seconds_of(lambda unit=unit: ask(unit)) for unit in cuts[: n_cuts // 2]]
    base_seconds = seconds_of(ask)
    swept: list[tuple[float, float]] = []
    peak = peak_of(lambda: swept.append(sweep_all()))
    [(layer_tokens, engine_seconds)] = swept
    cut_seconds += [seconds_of(lambda unit=unit: ask(unit)) for unit in cuts[n_cuts // 2 :]]

    layer_parameters = sum(tensor.numel() for tensor in layers_of(model)[0].parameters())
    n_logits = count_tokens(samples).scored * (1 + base.n_layers)
    layer_flop = 2 * layer_parameters * layer_tokens
    logit_flop = 2 * model.config.hidden_size * model.config.vocab_size * n_logits
    rate = (layer_flop + logit_flop) / engine_seconds
    peak_flops = peak_rate(model.dtype)
    naive_seconds = base_seconds + base.n_layers * statistics.mean(cut_seconds)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    return {
        "questions": len(samples),
        "choices": len(rows),
        "number format": str(model.dtype),
        "threads": torch.get_num_threads(),
        "lm-eval, base model, s": round(base_seconds, 1),
        "lm-eval, cut models, s": [round(seconds, 1) for seconds in cut_seconds],
        "lm-eval, base and all cut models, s": round(naive_seconds, 1),
        "engine, base and all cut models, s": round(engine_seconds, 1),
        "ratio": round(naive_seconds / engine_seconds, 2),
        "products of the engine, TFLOP": round((layer_flop + logit_flop) / 1e12, 1),
        "of these, logits": round(logit_flop / (layer_flop + logit_flop), 2),
        "rate of the engine, GFLOP/s": round(rate / 1e9),
        "rate of a large product, GFLOP/s": round(peak_flops / 1e9),
        "share": round(rate / peak_flops, 2),
        "weights, MB": round(weights / 1e6),
        "peak of the engine above the weights, MB": round(peak / 1e6),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a model's folder or .gguf file")
    parser.add_argument("questions", help="questions with choices, JSON Lines")
    parser.add_argument("--count", type=int, default=50, help="questions that are asked")
    parser.add_argument("--cuts", type=int, default=4, help="cut models that lm-eval asks")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    for name, value in measure(
        arguments.source, arguments.questions, arguments.count, arguments.cuts
    ).items():
        print(f"{name}: {value}")
