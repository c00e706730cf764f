"""Time and memory of fitting a patch, against a plain forward pass over the same tokens and against its own sums.

    python benchmarks/fit.py [--channels 2048 --layers 4 --tokens 16384 --repeats 3]

A random Llama whose last layer goes, since a fit runs no layer behind the run that it repairs. `passes`: all that a fit
runs but its solve (the moments, then the check of the fitted map), over a plain forward pass of the body, in seconds of
the processor, the median of `repeats` in turn; the bar is 1.5. `memory`: the peak above process and model, over what
1.5 (model + 4 C² numbers of 8 bytes) leaves beside the model; the bar is 1. The first fit tells it, before any other
pass could leave freed memory behind.
"""

import argparse
import json
import statistics
import time

import torch
from cases import peak_of
from transformers import AutoModelForCausalLM, LlamaConfig

from lamina.engine import taps
from lamina.engine.sources import Source
from lamina.repairs import check, operators
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost

LENGTH = 128
BATCH = 4096  # tokens of a batch


def main(channels: int, layers: int, tokens: int, repeats: int) -> dict[str, float]:
    """Ratios; times of the last turn in seconds beside them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=channels,
        intermediate_size=4 * channels * 2 // 3,
        num_hidden_layers=layers,
        num_attention_heads=channels // 64,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    source = Source(torch.randint(4, 512, (tokens // LENGTH, LENGTH)).tolist())
    run, spent = (layers - 1, layers), {}
    taps.run_sequences(model, source.sequences[:2], [], lambda *_: None, BATCH)

    def fit() -> None:
        times = [time.process_time()]
        ((_, sums),) = ghost.collect(model, [source], [run], Ghost(), 0)
        times.append(time.process_time())
        found = ghost.fit(sums, Ghost())
        del sums
        operators.describe_operator(ghost.as_patch(found.tensors))
        times.append(time.process_time())
        check.measure_patches(model, [source], {run: ghost.as_patch(found.validated)}, 0)
        times.append(time.process_time())
        for name, first, last in zip(("moments", "solve", "check"), times, times[1:], strict=False):
            spent[name] = last - first

    peak, passes = peak_of(fit), []
    for _ in range(repeats):
        began = time.process_time()
        taps.run_sequences(model, source.sequences, [], lambda *_: None, BATCH)
        spent["forward"] = time.process_time() - began
        fit()
        passes.append((spent["moments"] + spent["check"]) / spent["forward"])
    allowed = 1.5 * (weights + 32 * channels**2) - weights
    ratios = {"passes": statistics.median(passes), "lowest": min(passes), "highest": max(passes)}
    ratios["memory"] = peak / allowed
    sizes = {
        "channels": channels,
        "layers": layers,
        "tokens": tokens,
        "peak_bytes": peak,
        "model_bytes": weights,
    }
    return {name: round(value, 3) for name, value in {**sizes, **ratios, **spent}.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--channels", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(main(args.channels, args.layers, args.tokens, args.repeats)))
