"""Measure what many variants of one model write to the questions of one lm-eval task, with one model load."""

import json
from typing import Any

from transformers import PreTrainedModel

from lamina.config.benchmarks import Generate, Task
from lamina.data.lm_tasks import task_object
from lamina.errors import explained
from lamina.evaluation import measuring
from lamina.evaluation.generation import GenerationBenchmark
from lamina.models.load import load_tokenizer

if __name__ == "__main__":
    parser = measuring.parser(__doc__)
    parser.add_argument("--generate", type=json.loads, required=True, help="its key `generate`, as JSON")
    with explained():
        arguments = parser.parse_args()
        options, generate = Task.from_options(arguments.options), Generate.from_options(arguments.generate)

        def prepare(manifest: dict[str, Any], base: PreTrainedModel) -> measuring.Score:
            told = (options.num_fewshot, options.choices)
            task = task_object(arguments.task, arguments.root, *told, trust_code=options.trust_code)
            chat = bool(manifest.get("chat_template"))
            return GenerationBenchmark(task, base, load_tokenizer(manifest), generate, options.limit, chat).score

        measuring.run(arguments, prepare)
