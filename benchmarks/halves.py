"""What a token's time really loses without attentions and without MLPs, beside the estimate of `cost: latency`.

`PYTHONPATH=src python benchmarks/halves.py [FOLDER]`: a folder of a model, SmolLM2 of `make smollm2` if none is named.
Ten attentions and ten MLPs are removed in turn; each is timed in turns with the base, with caches of several lengths.
"""

import sys

import torch
from cases import ROOT

from lamina.config.benchmarks import Efficiency
from lamina.evaluation import efficiency
from lamina.models.load import load_folder
from lamina.models.manifest import attention_share
from lamina.models.materialise import materialise

CONTEXTS, REMOVED = (256, 1024, 4096), 10


def main(folder: str) -> None:
    torch.set_num_threads(1)
    model = load_folder(folder, "bfloat16", False)
    # As many numbers for each layer as its cache has for one token.
    cached = efficiency.kv_bytes_per_token(model) / 2
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
            for row in efficiency.measure(model, cut, options)
        ]
        share = attention_share(model, cached * context)
        print(
            f"cache of {context} tokens: without {REMOVED} attentions {saved[0]:.1%} less time, without {REMOVED} MLPs "
            f"{saved[1]:.1%}; share of attention {saved[0] / sum(saved):.2f}, estimated {share['latency']:.2f}, of the "
            f"parameters {share['parameters']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(ROOT / "models/smollm2/checkpoint")])
