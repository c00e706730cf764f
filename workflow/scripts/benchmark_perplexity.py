"""Measure one perplexity on many variants of one model, with one model load."""

from typing import Any

from transformers import PreTrainedModel

from lamina.config.benchmarks import Perplexity
from lamina.data.documents import corpus_file, read_documents
from lamina.errors import explained
from lamina.evaluation import measuring, perplexity
from lamina.models.load import load_tokenizer
from lamina.models.structure import text_config

if __name__ == "__main__":
    with explained():
        arguments = measuring.parser(__doc__).parse_args()
        options = Perplexity.from_options(arguments.options)

        def prepare(manifest: dict[str, Any], base: PreTrainedModel) -> measuring.Score:
            documents = read_documents(corpus_file(options.text, options.split, arguments.root), options.documents)
            cut = perplexity.windows(documents, load_tokenizer(manifest), options.window, options.stride)
            about = {"task": arguments.task, "task_version": perplexity.version(options.window, options.stride)}

            def score(model: PreTrainedModel, name: str) -> tuple[measuring.Rows, measuring.Rows]:
                scores = perplexity.document_nll(model, cut, len(documents), name)
                measured = perplexity.metric_rows(scores, text_config(base).vocab_size)
                found = perplexity.sample_rows(scores)
                return [row | about for row in measured], [row | {"task": arguments.task} for row in found]

            return score

        measuring.run(arguments, prepare)
