"""Train the embedded model a little longer on some of its tasks: two settings files in, model folder out."""

import argparse
import sys
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from microworld import training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="config/reference.yaml")
    parser.add_argument("--siblings", type=Path, required=True, help="config/siblings.yaml")
    parser.add_argument("--name", required=True, help="one of its siblings")
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    arguments = parser.parse_args()
    settings, siblings = (
        yaml.safe_load(file.read_text(encoding="utf-8"))
        for file in (arguments.settings, arguments.siblings)
    )
    settings["training"] |= siblings["training"]
    settings["mixture"] = siblings["siblings"][arguments.name]
    torch.set_num_threads(settings["training"]["threads"])
    start = Path(siblings["start"])
    training.train(
        settings, arguments.output, log=lambda line: print(line, flush=True), start=start
    )


if __name__ == "__main__":
    main()
