"""Cut models in llama.cpp against transformers.

`pip install --no-deps cyllama==0.2.18`, then `PYTHONPATH=src:. python reports/scripts/llama_parity.py` prints the rows
of the table of reports/runtimes.md.
"""

import tempfile
from pathlib import Path

from tests.given.llama_cpp import CASES, DEPTH, largest_differences, largest_quantised_differences

if __name__ == "__main__":
    for family, units, right in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = largest_differences(family, units, Path(folder))
        cells = [family, f"{', '.join(units)} of {DEPTH}", "in place" if right else "**shifted**"]
        print("| " + " | ".join([*cells, *(f"{far:.1e}" for far in found)]) + " |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = largest_quantised_differences(Path(folder))
    print(f"| llama, quantised | 1 of 3 | in place | {whole:.1e} | – | {cut:.1e} |")
