"""Measure one perplexity on many variants of one model, with one model load."""

import argparse
import json
from pathlib import Path

from lamina.config.benchmarks import Perplexity
from lamina.data.documents import corpus_file, read_documents
from lamina.errors import explained
from lamina.evaluation import perplexity, variants
from lamina.models.load import load_model, load_tokenizer
from lamina.models.structure import text_config
from lamina.tables import store
from lamina.variant import Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--variants", type=Variant.parse, nargs="*", default=[], help="variants of one model, as text")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the variants' files are")
    parser.add_argument("--name", required=True, help="name of the entry under benchmarks: perplexity")
    parser.add_argument("--options", type=json.loads, required=True, help="its options, as JSON")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder that relative data paths start from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    options = Perplexity.from_options(arguments.options)
    rows, samples = [], []
    if arguments.variants:
        manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
        base = load_model(manifest)
        documents = read_documents(corpus_file(options.text, options.split, arguments.root), options.documents)
        cut = perplexity.windows(documents, load_tokenizer(manifest), options.window, options.stride)
        version = perplexity.version(options.window, options.stride)
        for variant, model in variants.in_turn(base, arguments.variants, arguments.results):
            scores = perplexity.document_nll(model, cut, len(documents), variants.title(variant))
            keys = variant.row() | {"task": arguments.name}
            measured = perplexity.metric_rows(scores, text_config(base).vocab_size)
            rows += [keys | row | {"task_version": version} for row in measured]
            samples += [keys | row for row in perplexity.sample_rows(scores)]
    store.write(arguments.samples, store.from_rows("benchmark_samples", samples), store.provenance(vars(arguments)))
    store.write(arguments.output, store.from_rows("benchmarks", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
