"""Write the model in a GGUF file as an ordinary checkpoint."""

import argparse
from pathlib import Path

from lamina.errors import explained
from lamina.models.dequantise import dequantise

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="its name in the config")
    parser.add_argument("--file", required=True, type=Path)
    parser.add_argument("--dtype", required=True, help="of the weights that are written; auto for float32")
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    with explained():
        dequantise(args.file, args.output, args.dtype, f"models.{args.model}.source")
