"""Score one lm-eval task on many variants of one model, with one model load."""

import argparse
import json
from pathlib import Path

from lamina.data.lm_tasks import task_object
from lamina.errors import explained
from lamina.evaluation import variants
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", required=True, help="name of the model in the configuration")
    parser.add_argument("--task", required=True)
    parser.add_argument("--task-options", type=json.loads, required=True, help="its entry under benchmarks, as JSON")
    parser.add_argument("--variants", required=True, help="JSON list, see lamina.evaluation.variants")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder that relative data paths start from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    wanted = variants.read(arguments.variants, arguments.model)
    manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
    options = arguments.task_options
    rows, samples = [], []
    if wanted:
        base = load_model(manifest)
        task = task_object(arguments.task, arguments.root, options.get("num_fewshot"), options.get("choices"))
        benchmark = TaskBenchmark(
            task, base, load_tokenizer(manifest), options.get("limit"), bool(manifest.get("chat_template"))
        )
        for description, model in variants.in_turn(base, wanted):
            scores = benchmark.score(model, description.name)
            rows += [description.keys | row for row in scores.metrics]
            samples += [description.keys | row for row in scores.samples]
    store.write(arguments.samples, store.from_rows("benchmark_samples", samples), store.provenance(vars(arguments)))
    store.write(arguments.output, store.from_rows("benchmarks", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
