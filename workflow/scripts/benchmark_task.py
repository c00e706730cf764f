"""Score one lm-eval task or group of tasks on many variants of one model, with one model load."""

import argparse
import json
from pathlib import Path

from lamina.config.benchmarks import Task
from lamina.data.lm_tasks import load_task
from lamina.errors import explained
from lamina.evaluation import variants
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.tables import store
from lamina.variant import Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--variants", type=Variant.parse, nargs="*", default=[], help="variants of one model, as text")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the variants' files are")
    parser.add_argument("--task", required=True)
    parser.add_argument("--options", type=json.loads, required=True, help="its options, as JSON")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder that relative data paths start from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    options = Task.from_options(arguments.options)
    rows, samples = [], []
    if arguments.variants:
        manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
        base = load_model(manifest)
        task = load_task(arguments.task, arguments.root, options.num_fewshot, options.choices)
        benchmark = TaskBenchmark(
            task, base, load_tokenizer(manifest), options.limit, bool(manifest.get("chat_template"))
        )
        for variant, model in variants.in_turn(base, arguments.variants, arguments.results):
            scores = benchmark.score(model, variants.title(variant))
            rows += [variant.row() | row for row in scores.metrics]
            samples += [variant.row() | row for row in scores.samples]
    store.write(arguments.samples, store.from_rows("benchmark_samples", samples), store.provenance(vars(arguments)))
    store.write(arguments.output, store.from_rows("benchmarks", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
