"""Train the embedded reference model and write its microworld: settings file in, model folder out."""

import argparse
import sys
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from microworld import data, diagnosed, training


def main() -> None:
    """Read the command line, write the documents and train the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="config/reference.yaml")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="folder of the model; its data/ gets the documents",
    )
    arguments = parser.parse_args()
    settings = yaml.safe_load(arguments.settings.read_text(encoding="utf-8"))
    torch.set_num_threads(settings["training"]["threads"])
    data.write(arguments.output / "data", settings["seed"])
    diagnosed.write(arguments.output / "data", settings["seed"])
    training.train(settings, arguments.output, log=lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
