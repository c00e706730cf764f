"""How much cheaper the engine makes a sweep than evaluating each cut model with lm-eval, on the same samples.

    python benchmarks/sweep.py            a table
    python benchmarks/sweep.py --json     one JSON object on standard output

Both ways run in this process, in turn, and the median of the ratios of their times is what counts: absolute times of a
busy machine say little. `bound` is the ratio of the layer-tokens that the two ways have to run.
"""

import argparse
import copy
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from lamina.data import documents, lm_tasks, text
from lamina.data.calibrations import Row, Sample
from lamina.models.surgery import remove
from lamina.models.variant import share
from lamina.sweep import engine, packing

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "resources/reference"
TASKS = ("recall", "facts", "hops", "addition", "comparison", "boolean")
# Two choices whose log-likelihoods are nearer than this may be decided by rounding.
NEAR_TIE = 1e-4


def deep_model() -> PreTrainedModel:
    """24 random layers, enough for the layer sharing to show."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=24,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def documents_of(count: int, context: tuple[int, int], choices: int, answer: tuple[int, int]) -> list[Sample]:
    """Random multiple-choice documents with lengths drawn from the two ranges."""
    draw = random.Random(0)

    def words(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, 278) for _ in range(draw.randint(low, high)))

    samples = []
    for index in range(count):
        before = words(*context)
        rows = tuple(Row(before, words(*answer), 4) for _ in range(choices))
        samples.append(Sample(index, "choices", 0, rows, str(index)))
    return samples


def cases(chosen: Sequence[str]) -> list[tuple[str, PreTrainedModel, list[Sample]]]:
    """Name, model and samples of every case."""
    reference = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    recorder = lm_tasks.recorder(reference, tokenizer)

    def task(name: str) -> list[Sample]:
        return lm_tasks.task_samples(lm_tasks.task_object(f"microworld_{name}", ROOT, split="train"), recorder, 100, 0)

    def prose() -> list[Sample]:
        file = documents.corpus_file(documents.CORPUS, "train", ROOT)
        return text.text_samples(documents.read_documents(file, "0:100"), tokenizer, 64)

    every: dict[str, Callable[[], tuple[PreTrainedModel, list[Sample]]]] = {
        "deep": lambda: (deep_model(), documents_of(24, (40, 80), 4, (4, 12))),
        **{f"microworld_{name}": (lambda name=name: (reference, task(name))) for name in TASKS},
        "text": lambda: (reference, prose()),
        "long_context": lambda: (reference, documents_of(24, (120, 220), 2, (1, 2))),
        "one_token": lambda: (reference, documents_of(60, (40, 80), 4, (1, 1))),
    }
    return [(name, *make()) for name, make in every.items() if not chosen or name in chosen]


def naive(lm: HFLM, model: PreTrainedModel, requests: list[Any], units: Sequence[str]) -> np.ndarray:
    """Log-likelihoods, (units + 1, rows): lm-eval's own loop on one cut model after another."""
    found = []
    for unit in ["none", *units]:
        lm._model = model if unit == "none" else remove(share(model), [unit])
        found.append([score for score, _ in lm._loglikelihood_tokens(requests, disable_tqdm=True)])
    return np.array(found)


def bound(samples: Sequence[Sample], n_layers: int) -> float:
    """Layer-tokens of the naive loop over those of the engine.

    The naive loop runs every distinct input (lm-eval shares rows that differ in their last token only) through L layers
    once and through L - 1 layers L times; in the engine, layer l carries the model and the l streams forked before it.
    """
    rows = sum(
        len(tokens) for sample in samples for tokens in {row.context + row.continuation[:-1] for row in sample.rows}
    )
    packed = sum(len(line.tokens) for number, sample in enumerate(samples) for line in packing.pack(number, sample))
    return rows * n_layers**2 / (packed * n_layers * (n_layers + 1) / 2)


def predictions(samples: Sequence[Sample], scores: np.ndarray) -> list[tuple[int, bool]]:
    """Best choice of each sample and whether it is a near tie."""
    found, start = [], 0
    for sample in samples:
        part = scores[start : start + len(sample.rows)]
        start += len(sample.rows)
        ordered = np.sort(part)[::-1]
        found.append((int(part.argmax()), len(part) > 1 and ordered[0] - ordered[1] < NEAR_TIE))
    return found


def measure(name: str, model: PreTrainedModel, samples: list[Sample], repeats: int, tokens: int) -> dict[str, Any]:
    """Run both ways in turn and compare times and results."""
    n_layers = engine.layer_count(model)
    units = engine.all_units(n_layers, "layer")
    longest = max(len(row.context + row.continuation) for sample in samples for row in sample.rows)
    lm = HFLM(
        pretrained=copy.deepcopy(model),
        tokenizer=AutoTokenizer.from_pretrained(REFERENCE),
        batch_size=max(1, tokens // longest),
    )
    # A text is one row; lm-eval asks for its continuation like any other.
    requests = [(("", ""), list(row.context), list(row.continuation)) for sample in samples for row in sample.rows]
    ratios, difference, same = [], 0.0, True
    for turn in range(repeats + 1):
        began = time.perf_counter()
        expected = naive(lm, model, requests, units)
        between = time.perf_counter()
        scores = engine.sweep(model, samples, units, tokens=tokens)
        ended = time.perf_counter()
        if turn:  # the first is a warm-up
            ratios.append((between - began) / (ended - between))
        difference = max(difference, float(np.abs(scores.loglikelihood - expected).max()))
        for mine, theirs in zip(scores.loglikelihood, expected, strict=True):
            pairs = zip(predictions(samples, mine), predictions(samples, theirs), strict=True)
            same &= all(a == b for (a, tie), (b, _) in pairs if not tie)
    return {
        "case": name,
        "method": "engine",
        "ratio": round(statistics.median(ratios), 2),
        "lowest": round(min(ratios), 2),
        "highest": round(max(ratios), 2),
        "bound": round(bound(samples, n_layers), 2),
        "same_predictions": same,
        "max_loglik_diff": difference,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16384, help="budget of one pass, for both ways")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("cases", nargs="*", help="names; all if none are given")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    rows = []
    for case in cases(args.cases):
        rows.append(measure(*case, args.repeats, args.tokens))
        print(
            rows[-1] if args.json else "{case:24} {ratio:6} of {bound:6} ({lowest} to {highest})".format(**rows[-1]),
            file=sys.stderr,
        )
    if args.json:
        print(json.dumps({"cases": rows}))
