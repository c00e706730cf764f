"""Train the embedded model a little longer on some of its tasks: two settings files in, model folder out."""

import argparse
import sys
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from microworld import training


def main() -> None:
    """Read the command line and train the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="config/reference.yaml")
    parser.add_argument("--siblings", type=Path, required=True, help="config/siblings.yaml")
    parser.add_argument("--name", required=True, help="one of its siblings")
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    arguments = parser.parse_args()
    settings = yaml.safe_load(arguments.settings.read_text(encoding="utf-8"))
    siblings = yaml.safe_load(arguments.siblings.read_text(encoding="utf-8"))
    settings["training"] |= siblings["training"]
    settings["mixture"] = siblings["siblings"][arguments.name]
    torch.set_num_threads(settings["training"]["threads"])
    training.train(
        settings,
        arguments.output,
        log=lambda line: print(line, flush=True),
        start=Path(siblings["start"]),
    )


if __name__ == "__main__":
    main()
