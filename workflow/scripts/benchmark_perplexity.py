"""Measure one perplexity on many variants of one model, with one model load."""

from lamina_workflow.runtime.script import run_script

from lamina.data.benchmark_documents import read_texts
from lamina.evaluation.assembly import read_all_parts
from lamina.evaluation.measuring import Unfinished, measure_variants
from lamina.evaluation.perplexity import PerplexityBenchmark
from lamina.models.load import load_model, load_tokenizer
from lamina.store import checksum
from lamina_workflow.stages.benchmark import BenchmarkPerplexity, Rows


def measure_block(job: BenchmarkPerplexity, unfinished: Unfinished) -> tuple[Rows, Rows]:
    """Rows of tables `benchmarks` and `benchmark_samples`."""
    manifest = checksum.read_json(job.manifest)
    base = load_model(manifest, check=job.check)
    documents = read_texts(job.documents)
    benchmark = PerplexityBenchmark(job.name, documents, load_tokenizer(manifest), job.text)
    variants = read_all_parts(job.files_by_variant())
    return measure_variants(base, variants, benchmark.score, unfinished)


if __name__ == "__main__":
    with run_script(snakemake):
        BenchmarkPerplexity.read(snakemake).write(measure_block)
