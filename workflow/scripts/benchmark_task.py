"""Score one lm-eval task or group of tasks on many variants of one model, with one model load."""

from typing import Any

from transformers import PreTrainedModel

from lamina.config.benchmarks import Task
from lamina.data.lm_tasks import load_task
from lamina.errors import explained
from lamina.evaluation import measuring
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_tokenizer

if __name__ == "__main__":
    with explained():
        arguments = measuring.parser(__doc__).parse_args()
        options = Task.from_options(arguments.options)

        def prepare(manifest: dict[str, Any], base: PreTrainedModel) -> measuring.Score:
            told = (options.num_fewshot, options.choices)
            task = load_task(arguments.task, arguments.root, *told, trust_code=options.trust_code)
            chat = bool(manifest.get("chat_template"))
            return TaskBenchmark(task, base, load_tokenizer(manifest), options.limit, chat).score

        measuring.run(arguments, prepare)
