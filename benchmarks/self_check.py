"""What the engine's proof on a model costs beside the sweep that it precedes.

    python benchmarks/self_check.py            two lines
    python benchmarks/self_check.py --json     one JSON object on standard output

The model is a random Llama; each sample has two choices that share a context. `arithmetic` counts tokens through
layers, those of the plain model included; `time` compares opening a session on a model that is new to one on a model
that is known, in this process and in turn, with the seconds of the sweep. Both are shares of the sweep.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lamina.data.calibrations import Row, Sample
from lamina.engine import sweep as engine
from lamina.models.boundary import share_weights
from lamina.models.structure import layers_of
from lamina.models.units import all_units


def model(depth: int, width: int) -> PreTrainedModel:
    """A random Llama."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": depth, "hidden_size": width, "intermediate_size": 3 * width}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=512)
    ).eval()


def questions(count: int) -> list[Sample]:
    """Two choices each, with contexts of 24 to 72 tokens."""
    ids = torch.randint(4, 512, (count, 80), generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for number, line in enumerate(ids):
        context = tuple(line[: 24 + number * 48 // max(1, count - 1)])
        found.append(
            Sample(
                number,
                "choices",
                0,
                tuple(Row(context, (*line[72:75], n), 4) for n in range(2)),
                str(number),
            )
        )
    return found


@contextmanager
def counted(wanted: PreTrainedModel) -> Iterator[list[int]]:
    """While open, tokens that go through a layer are counted."""
    found: list[int] = []
    handles = [
        layer.register_forward_hook(
            lambda module, args, output: found.append(args[0].shape[0] * args[0].shape[1])
        )
        for layer in layers_of(wanted)
    ]
    yield found
    for handle in handles:
        handle.remove()


def opening(of: PreTrainedModel, samples: list[Sample]) -> float:
    """Seconds until a session on a model is open."""
    began = time.perf_counter()
    with engine.open_session(of, samples):
        return time.perf_counter() - began


def main() -> None:
    """Count, time and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    told = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    base, samples = model(told.layers, told.width), questions(told.samples)
    units = all_units(told.layers, "layer")
    known = share_weights(base)
    with counted(known) as proof:
        opening(known, samples)
    extra = []
    for _ in range(told.repeats):
        # A copy that shares its weights is new.
        extra.append(opening(share_weights(base), samples) - opening(known, samples))
    with counted(known) as sweep:
        began = time.perf_counter()
        engine.sweep_units(known, samples, units)
        seconds = time.perf_counter() - began
    record = {
        "layers": told.layers,
        "width": told.width,
        "samples": told.samples,
        "arithmetic": round(sum(proof) / sum(sweep), 4),
        "time": round(statistics.median(extra) / seconds, 4),
    }
    if told.json:
        print(json.dumps(record))
    else:
        print(
            "the proof's share of a sweep of {samples} samples, {layers} layers × {width}:".format(
                **record
            )
        )
        print("arithmetic {arithmetic:.2%}, time {time:.2%}".format(**record))


if __name__ == "__main__":
    main()
