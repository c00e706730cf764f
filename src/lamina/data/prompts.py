"""The prompts of lm-eval tasks, as lm-eval's command line makes them, for calibrations and benchmarks alike.

The defaults of `lm_eval.simple_evaluate` and of its HFLM that decide a number are the defaults here, but for these:

- `num_fewshot` is 0 (as the task file says), and a number that is written holds for every task;
- `apply_chat_template` is the `chat_template` of the model (False);
- `softmax_dtype` is float32 (that of the logits), and `batch_size` is as memory allows (1);
- a question is never among its own examples (it may be); all other examples are those of lm-eval.

Equal are `fewshot_as_multiturn` (True), `system_instruction` (None) and `chat_template_args` (none), which are keys of
the model; `fewshot_random_seed` (1234), `gen_kwargs` (none), `bootstrap_iters` (100,000), `max_gen_toks` (256),
`add_bos_token` (as the tokenizer does), `prefix_token_id` (BOS, else EOS), `max_length` (what config.json says, else
what the tokenizer says, else 2048) and `truncation` (False: what is longer loses its oldest tokens).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask

from lamina.data.answers import document_start, document_text
from lamina.data.encoding import EncodingLM
from lamina.data.overlap import document_hash
from lamina.errors import LaminaError

# The seed with which the stock lm_eval command draws few-shot examples.
FEWSHOT_SEED = 1234


@dataclass(frozen=True)
class Style:
    """How the prompts of a model are written."""

    chat_template: bool = False  # whether they go through the chat template of the tokenizer
    turns: bool = True  # whether solved examples are turns of the conversation, or stand in the turn of the question
    system: str | None = None  # the system prompt; without a template it stands before the prompt
    arguments: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the template, such as enable_thinking

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Self:
        """As the manifest of a model says."""
        keys = ("chat_template", "fewshot_as_turns", "system_prompt", "template_arguments")
        return cls(*(manifest[key] for key in keys))


PLAIN = Style()


def build(
    task: ConfigurableTask,
    lm: EncodingLM,
    style: Style,
    samples: Sequence[int] | None = None,
    limit: int | None = None,
) -> None:
    """Make the requests of a task (`task.instances`): of the documents `samples`, of the first `limit`, or of all.

    Raises LaminaError if there are too few other documents for the examples, or one of them has no answer.
    """
    task.set_fewshot_seed(FEWSHOT_SEED)
    if task.config.num_fewshot:
        _keep_apart(task, int(task.config.num_fewshot))
    lm.chat_template_args = dict(style.arguments)
    options: dict[str, Any] = {}
    if style.chat_template:
        options = {"apply_chat_template": True, "chat_template": lm.apply_chat_template}
        options |= {"fewshot_as_multiturn": style.turns, "tokenizer_name": lm.tokenizer_name}
    task.build_all_requests(
        samples=samples, limit=limit, system_instruction=style.system, **options
    )


def delimiter(task: ConfigurableTask, style: Style) -> str:
    """What stands between a prompt and its answer: nothing behind a template, but for a prefix of the answer."""
    prefix = task.config.gen_prefix
    unended = bool(prefix) and prefix == prefix.rstrip()
    return str(task.config.target_delimiter) if unended or not style.chat_template else ""


def _keep_apart(task: ConfigurableTask, number: int) -> None:
    """Let no question be among its own examples, whatever the splits and however often the data holds it.

    lm-eval leaves out an equal document where examples and questions come from one split of the same name. The other
    examples stay those that lm-eval draws.
    """
    sample: Callable[..., Sequence[dict[str, Any]]] = task.sampler.sample
    context, pool = task.fewshot_context, list(task.sampler.fewshot_docs())
    asked: list[dict[str, Any]] = []

    def apart(
        n: int, eval_doc: dict[str, Any] | None = None, **options: Any
    ) -> Sequence[dict[str, Any]]:
        own = _identity(task, asked[-1], False)
        try:
            drawn = list(sample(n=n, eval_doc=eval_doc, **options))
        except (AssertionError, ValueError) as error:
            raise _too_few(task, n, asked[-1]) from error
        kept = [doc for doc in drawn if _identity(task, doc, True) != own]
        # In an order that the question alone decides, so that the next examples are still those of lm-eval.
        rest = list(range(len(pool))) if len(kept) < n else []
        if not isinstance(task.sampler, FirstNSampler):
            random.Random(f"{FEWSHOT_SEED} {own}").shuffle(rest)
        for place in rest:
            if (
                len(kept) < n
                and pool[place] not in kept
                and _identity(task, pool[place], True) != own
            ):
                kept.append(pool[place])
        if len(kept) < n:
            raise _too_few(task, n, asked[-1])
        for doc in kept:
            _check_example(task, doc)
        return kept

    def fewshot_context(doc: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        asked[:] = [doc]
        return context(doc, *arguments, **options)

    task.sampler.sample = apart
    task.fewshot_context = fewshot_context


def _identity(task: ConfigurableTask, doc: dict[str, Any], example: bool) -> str:
    """What makes a document the same question as another: the words of its question and of its choices."""
    shots = task.fewshot_cfg
    if not example:
        text, choices = document_text(task, doc)
    else:
        asked = shots.doc_to_target if task.multiple_input else shots.doc_to_text
        text = str(
            task.doc_to_target(doc, asked) if task.multiple_input else task.doc_to_text(doc, asked)
        )
        choices = (
            list(map(str, task.doc_to_choice(doc, shots.doc_to_choice)))
            if shots.doc_to_choice
            else []
        )
    return document_hash(text, choices if task.config.output_type == "multiple_choice" else [])


def _check_example(task: ConfigurableTask, doc: dict[str, Any]) -> None:
    """Refuse an example whose answer is not there, or would be the last choice by number -1."""
    shots = task.fewshot_cfg
    answer = task.doc_to_target(doc, shots.doc_to_target)
    choices = task.doc_to_choice(doc, shots.doc_to_choice) if shots.doc_to_choice else None
    beyond = isinstance(answer, int) and choices is not None and not 0 <= answer < len(choices)
    if beyond or answer is None or answer == []:
        raise LaminaError(
            f"task '{task.config.task}': the few-shot example '{document_start(task, doc)}' has the answer {answer}, "
            "which is none of its choices. Correct the document, or write another fewshot_split."
        )


def _too_few(task: ConfigurableTask, number: int, doc: dict[str, Any]) -> LaminaError:
    return LaminaError(
        f"task '{task.config.task}' has too few documents for {number} examples of '{document_start(task, doc)}' other "
        "than the question itself. Write a smaller num_fewshot, or another fewshot_split."
    )
