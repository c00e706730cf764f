"""Measure the variants of a model as drafts of it, in turn with the model alone, with one model load."""

import argparse
import json
from pathlib import Path

from lamina.config.benchmarks import Drafts, Perplexity
from lamina.data.documents import corpus_file, read_documents
from lamina.errors import explained
from lamina.evaluation import drafts, variants
from lamina.models.load import load_model, load_tokenizer
from lamina.tables import store
from lamina.variant import Variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--variants", type=Variant.parse, nargs="+", required=True, help="variants of one model")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where the variants' files are")
    parser.add_argument("--options", type=json.loads, required=True, help="benchmarks: drafts, as JSON")
    parser.add_argument("--text", type=json.loads, required=True, help="the perplexity text that it names, as JSON")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder that relative data paths start from")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--code", default="", help="digest of the code behind this job, kept in the file's metadata")
    arguments = parser.parse_args()
    options, text = Drafts.from_options(arguments.options), Perplexity.from_options(arguments.text)
    manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
    base = load_model(manifest)
    documents = read_documents(corpus_file(text.text, text.split, arguments.root), text.documents)
    asked = drafts.prompts(documents, load_tokenizer(manifest), options)
    built = variants.in_turn(base, arguments.variants, arguments.results)
    rows = drafts.measure(base, ((variant.row(), model) for variant, model in built), asked, options)
    store.write(arguments.output, store.from_rows("drafts", rows), store.provenance(vars(arguments)))


if __name__ == "__main__":
    with explained():
        main()
