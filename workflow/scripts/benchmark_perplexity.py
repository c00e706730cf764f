"""Measure one perplexity on many variants of one model, with one model load."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lamina.data.documents import corpus_file, read_documents
from lamina.evaluation import measuring, perplexity
from lamina.evaluation.together import Together
from lamina.models.load import load_tokenizer
from lamina.models.structure import text_config
from lamina.runtime.script import running
from lamina.stages.benchmark import BenchmarkPerplexity

if __name__ == "__main__":
    with running(snakemake):
        job = BenchmarkPerplexity.read(snakemake)
        text = job.text

        def prepare(manifest: dict[str, Any], base: PreTrainedModel) -> measuring.Score:
            documents = read_documents(corpus_file(text.text, text.split, Path.cwd()), text.documents)
            cut = perplexity.windows(documents, load_tokenizer(manifest), text.window, text.stride)
            about = {"task": job.name, "task_version": perplexity.version(text.window, text.stride)}

            def score(model: PreTrainedModel, name: str, together: Together) -> tuple[measuring.Rows, measuring.Rows]:
                scores = perplexity.document_nll(model, cut, len(documents), name, together)
                measured = perplexity.metric_rows(scores, text_config(base).vocab_size)
                samples = perplexity.sample_rows(scores)
                return [row | about for row in measured], [row | {"task": job.name} for row in samples]

            return score

        measuring.run(job, prepare)
