"""Memory of a sweep above process and loaded model, against what its token budget predicts.

    python benchmarks/memory.py [--json]

Each budget runs in a process of its own, so that memory an earlier run has left behind is not counted as free.
"""

import argparse
import json
import subprocess
import sys

import torch
from cases import deep_model, pass_bytes, peak_of, random_documents

from lamina.engine import packing
from lamina.engine import sweep as engine
from lamina.models.units import all_units

BUDGETS = (32768, 65536, 131072)  # predicted to need 0.25, 0.5 and 1 GB


def measure(tokens: int) -> dict[str, float]:
    """Peak and prediction of one budget, with enough documents to fill it twice."""
    torch.set_num_threads(1)
    model = deep_model()
    samples = random_documents(2 * tokens // (25 * 90), (40, 80), 4, (4, 12))
    units = all_units(engine.layer_count(model), "layer")
    engine.sweep(model, samples[:2], units[:1])
    peak = peak_of(lambda: engine.sweep(model, samples, units, tokens=tokens))
    longest = max(len(packing.pack(0, sample)[0].tokens) for sample in samples)
    predicted = pass_bytes(model.config, tokens, longest, 4)
    return {
        "tokens": tokens,
        "peak_bytes": peak,
        "predicted_bytes": predicted,
        "share": round(peak / predicted, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, help="one budget, in this process")
    args = parser.parse_args()
    if args.tokens:
        print(json.dumps(measure(args.tokens)))
        sys.exit()
    rows = []
    for budget in BUDGETS:
        command = [sys.executable, __file__, "--tokens", str(budget)]
        rows.append(
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        )
    if args.json:
        print(json.dumps({"budgets": rows}))
    else:
        for row in rows:
            print(
                "{tokens:>7} tokens: {peak_bytes:>13,} bytes of {predicted_bytes:>13,} predicted".format(
                    **row
                )
            )
