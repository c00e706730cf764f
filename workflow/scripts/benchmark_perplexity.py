"""Measure one perplexity on many variants of one model, with one model load."""

import argparse
import json
from pathlib import Path

from lamina.data.documents import corpus_file, read_documents
from lamina.errors import explained
from lamina.evaluation import perplexity, variants
from lamina.models.load import load_model, load_tokenizer
from lamina.models.structure import text_config
from lamina.tables import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", required=True, help="name of the model in the configuration")
    parser.add_argument("--name", required=True, help="name of the entry under benchmarks: perplexity")
    parser.add_argument("--options", type=json.loads, required=True, help="the entry, as JSON")
    parser.add_argument("--variants", required=True, help="JSON list, see lamina.evaluation.variants")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder that relative data paths start from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    wanted = variants.read(arguments.variants, arguments.model)
    manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
    options = arguments.options
    rows, samples = [], []
    if wanted:
        base = load_model(manifest)
        file = corpus_file(options["text"], options.get("split"), arguments.root)
        documents = read_documents(file, options.get("documents"))
        cut = perplexity.windows(documents, load_tokenizer(manifest), options["window"], options.get("stride"))
        for description, model in variants.in_turn(base, wanted):
            scores = perplexity.document_nll(model, cut, len(documents), description.name)
            keys = description.keys | {"task": arguments.name}
            measured = perplexity.metric_rows(scores, text_config(base).vocab_size)
            rows += [keys | row | {"task_version": perplexity.version(options)} for row in measured]
            samples += [keys | row for row in perplexity.sample_rows(scores)]
    store.write(arguments.samples, store.from_rows("benchmark_samples", samples), store.provenance(vars(arguments)))
    store.write(arguments.output, store.from_rows("benchmarks", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
