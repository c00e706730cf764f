"""Measure the variants of a model as drafts of it, in turn with the model alone, with one model load."""

from pathlib import Path

from lamina.data.documents import corpus_file, read_documents
from lamina.errors import explained
from lamina.evaluation import assembly, drafts
from lamina.models.load import load_model, load_tokenizer
from lamina.stages.benchmark_drafts import BenchmarkDrafts
from lamina.store import checksum as seal
from lamina.store import parquet as store
from lamina.study.variant import Variant

if __name__ == "__main__":
    with explained():
        job = BenchmarkDrafts.read()
        manifest = seal.read_json(job.manifest)
        base = load_model(manifest, check=job.check)
        documents = read_documents(corpus_file(job.text.text, job.text.split, Path.cwd()), job.text.documents)
        prompts = drafts.prompts(documents, load_tokenizer(manifest), job.drafts)
        built = assembly.in_turn(base, [Variant.parse(text) for text in job.variants])
        rows = drafts.measure(base, ((variant.row(), model) for variant, model in built), prompts, job.drafts)
        store.write(job.output, store.from_rows("drafts", rows), job.provenance)
