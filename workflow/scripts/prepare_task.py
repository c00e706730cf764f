"""Load what a benchmark scores and write the hashes of its documents and of what stands in them.

Calibrations are checked against these.
"""

import argparse
import json
from pathlib import Path

import pyarrow as pa

from lamina.config import benchmarks
from lamina.data import documents, lm_tasks
from lamina.data.overlap import document_hash, runs
from lamina.errors import explained
from lamina.tables import store

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True, help="name of the task or perplexity text in the config")
    parser.add_argument("--entry", required=True, type=json.loads, help="options of its entry in the config, as JSON")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    with explained():
        if "text" in args.entry:
            entry = benchmarks.Perplexity.from_options(args.entry)
            path = documents.corpus_file(entry.text, entry.split, Path.cwd())
            texts = documents.read_documents(path, entry.documents, f"benchmarks.perplexity.{args.task}")
            tested = [(part, []) for part in texts]
        else:
            task_entry = benchmarks.Task.from_options(args.entry)
            task = lm_tasks.load_task(args.task, Path.cwd(), None, task_entry.choices, trust_code=task_entry.trust_code)
            tested = lm_tasks.test_documents(task, task_entry.limit)
        found = {
            "document": pa.array([document_hash(*asked) for asked in tested], pa.string()),
            "runs": pa.array([runs(*asked) for asked in tested], pa.list_(pa.uint64())),
        }
        store.write(args.output, pa.table(found))
