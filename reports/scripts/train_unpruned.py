"""The unpruned model after the training that a healing gives its variants: the control of what healing adds.

    PYTHONPATH=src python reports/scripts/train_unpruned.py CONFIG MODEL CALIBRATION HEALING FOLDER [--results results]

Trains MODEL on CALIBRATION and on what HEALING names beside it, with the documents, settings, seed and choice of epoch
of rule `heal_variant`, and writes FOLDER, an ordinary checkpoint with the updates merged. The run of CONFIG must have
prepared the model and the calibrations. Name FOLDER under `models` of a configuration to benchmark it.
"""

import argparse
import copy
import json
from pathlib import Path

import torch
from peft.tuners.lora import LoraLayer

from lamina import paths, seal
from lamina.config.configuration import Configuration
from lamina.config.text import load as load_yaml
from lamina.data import calibrations
from lamina.errors import explained
from lamina.healing import lora, training
from lamina.healing.objectives import Objective
from lamina.models import export
from lamina.models.load import load_model

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("config", "model", "calibration", "healing", "folder"):
        parser.add_argument(name)
    parser.add_argument("--results", default="results")
    args = parser.parse_args()
    with explained():
        options = Configuration.model_validate(load_yaml(args.config, {})).healings[args.healing]
        manifest = seal.read_json(paths.manifest(args.model, args.results))
        sources = [
            training.Source(calibrations.read(paths.calibration(args.model, name, args.results)).samples, weight)
            for name, weight in sorted(options.weights(args.calibration).items())
        ]
        base = load_model(manifest)
        model = copy.deepcopy(base)
        torch.manual_seed(options.seed)
        trained = lora.trainable(model, options)
        objective = Objective.of(options.objective, model, base, {"units": []}, options.temperature)
        rows, best = training.train(trained.weights, objective, sources, options, lambda: lora.merged(model))
        for name, parameter in trained.weights.items():
            parameter.data.copy_(best[name])
        for name, module in list(model.named_modules()):
            if isinstance(module, LoraLayer):
                module.merge()
                model.set_submodule(name, module.get_base_layer())
        export.save(model.eval(), args.folder, carried=Path(manifest["path"]))
        kept = [row for row in rows if row["chosen"]]
        print(json.dumps({"folder": args.folder, "epochs": len(rows), "kept": kept}, default=str))
