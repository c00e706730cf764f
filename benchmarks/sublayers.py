"""What a token's time really loses without attentions and without MLPs, beside the estimate of `cost: latency`.

`PYTHONPATH=src python benchmarks/sublayers.py [FOLDER]`: a folder of a model, SmolLM2 of `make smollm2` if none is named.
Ten attentions and ten MLPs are removed in turn; each is timed in turns with the base, with caches of several lengths.
"""

import sys

import torch
from cases import ROOT

from lamina.evaluation import efficiency
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.sizes import Sizes, count_sizes
from lamina.options.benchmarks import Efficiency

CONTEXTS, REMOVED = (256, 1024, 4096), 10


def share_of_attention(sizes: Sizes, cost: str, context: int) -> float:
    """What attentions have of all sub-layers, by parameters or by the bytes that one token reads."""
    by_unit_kind = sizes.amounts(cost, context).by_unit_kind
    attention = sum(by_unit_kind["attention"])
    return attention / (attention + sum(by_unit_kind["mlp"]))


def main(folder: str) -> None:
    torch.set_num_threads(1)
    model = load_folder(folder, "bfloat16", False)
    sizes = count_sizes(model, model.dtype.itemsize)
    for context in CONTEXTS:
        options = Efficiency.model_validate(
            {"prompt": context, "generate": 33, "batch": 1, "repeats": 3}
        )
        cut = (
            (
                {"timed": part},
                materialise(
                    model, {"units": [f"{layer}.{part}" for layer in range(5, 5 + REMOVED)]}
                ),
            )
            for part in ("attention", "mlp")
        )
        saved = [
            1 - 1 / row["tokens_per_second_ratio"]
            for row in efficiency.measure_efficiency(model, cut, options)
        ]
        print(
            f"cache of {context} tokens: without {REMOVED} attentions {saved[0]:.1%} less time, without {REMOVED} MLPs "
            f"{saved[1]:.1%}; share of attention {saved[0] / sum(saved):.2f}, "
            f"estimated {share_of_attention(sizes, 'latency', context):.2f}, of the parameters "
            f"{share_of_attention(sizes, 'parameters', context):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(ROOT / "models/smollm2/checkpoint")])
