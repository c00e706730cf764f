"""Section `calibrations`: the samples on which units are scored and patches are fitted.

They are never test data.
"""

import re
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from lamina.options import entry
from lamina.options.entry import Choice, Documents, Entry, Filled, UserPath, Weights, option
from lamina.options.explain import invalid

CORPUS = "microworld_corpus"
TEMPLATE_FIELD = r"\{(\w+)\}"  # the name of a field in a template


def corpus_file(text: str, split: str | None = None) -> str:
    """The file behind a `text` entry, relative as written.

    The embedded corpus is named by its name and split.
    """
    if text != CORPUS:
        return text
    return f"resources/reference/data/corpus_{split or 'train'}.jsonl"


def _check_split(split: str) -> str:
    if split == "test":
        raise ValueError
    return split


Split = Annotated[Filled, AfterValidator(_check_split)]


# Keys that several kinds of calibrations have, or benchmarks as well.
_SPLIT = option(
    "Split of the data from which the samples are drawn; `test` is refused.",
    "train",
    allowed="train, validation or another split that is never benchmarked (not test)",
)
_LIMIT = option(
    "Number of samples drawn; `null` takes all. How many a metric needs: docs/choose.md.",
    None,
    ge=1,
)
NUM_FEWSHOT = option(
    "Few-shot examples before each question. A prompt longer than the model's context is "
    "truncated on the left.",
    0,
    ge=0,
)
FEWSHOT_SEED = 1234  # with which the stock lm_eval command draws
EXAMPLES_SEED = option(
    "Seed that draws and orders the few-shot examples. With lm-eval's default, 1234, tasks such "
    "as MMLU always have the same examples in the same order.",
    FEWSHOT_SEED,
    ge=0,
)
TEXT = option(
    "A .json (list of strings), .jsonl (`text`) or .txt (blank lines) file, or `microworld_corpus`."
)
_DOCUMENTS = option(
    "Half-open range of documents; `null` takes all.", "0:500", allowed=entry.DOCUMENTS_ALLOWED
)
_LENGTH = option(
    "Maximum tokens of a sample, taken from the start of its document. Accuracy is measured on "
    "the last token.",
    128,
    ge=2,
)
_MIN_TOKENS = option(
    "Documents with fewer tokens are skipped, and `documents` does not count them. 2049 with "
    "`length: 2048` takes only documents that are truncated.",
    None,
    ge=2,
)
_JOINED = option(
    'String that joins the documents into one stream, such as `"\\n\\n"`. A sample is then a '
    "window of `length` tokens, and an incomplete last window is dropped.",
    None,
)
_ANSWERS = option(
    "Where the answers come from. `gold`: the data. `model`: the base model, which generates "
    "them once.",
    "gold",
)
_KEEP = option(
    "With `answers: model`: keep `all` questions, or only those that the model answers `right` "
    "by exact match.",
    "all",
)
_TEMPERATURE = option(
    "With `answers: model`: sampling temperature; 0 is greedy decoding.", 0.0, ge=0
)
_PROMPT = option(
    "With `answers: model`: tokens of each document that the model continues.",
    16,
    ge=1,
)


trust_code_option = partial(
    option,
    "Whether Python code that task files in `workflow/tasks` refer to may run (`!function`, "
    "custom metrics).",
    False,
)


class Calibration(Choice):
    """Samples on which units are scored and repairs fitted.

    One of the keys `task`, `tasks`, `text`, `hub`, `mixture` and `choices` says what they are.
    docs/data.md says what each is good for.
    """

    ASIDE = ("score", "group", "replicates")

    score: Literal["acc_norm", "acc"] = option(
        "Whether metrics `accuracy` and `margin` divide a choice's log-likelihood by its length "
        "(`acc_norm`) or not (`acc`).",
        "acc_norm",
    )
    group: Filled | None = entry.group_option()
    replicates: int = entry.replicates_option()

    @property
    def drawn(self) -> list[str]:
        """The lm-eval tasks from which samples are drawn."""
        if isinstance(self, Task):
            return [self.task]
        if isinstance(self, Tasks):
            return self.tasks
        return []

    @property
    def own(self) -> bool:
        """Whether the model writes the answers of the samples itself."""
        return getattr(self, "answers", "gold") == "model"

    @model_validator(mode="after")
    def _check_answers(self) -> Self:
        """Refuse options of written answers where none are written, and prompts that fill all."""
        if not self.own:
            self._check_no_answer_options()
        elif getattr(self, "prompt", 0) >= getattr(self, "length", 1):
            raise invalid(
                "the prompt leaves no room for an answer. Write a prompt shorter than `length`.",
                "prompt",
            )
        return self

    def _check_no_answer_options(self) -> None:
        for key in ("keep", "temperature", "prompt"):
            key_field = type(self).model_fields.get(key)
            if key_field and getattr(self, key) != key_field.default:
                raise invalid(
                    "this is only for answers that the model writes. Leave it out, or add "
                    "`answers: model`.",
                    key,
                )


class Task(Calibration):
    """Documents of one lm-eval task, or of a group of tasks such as `mmlu`."""

    MARKS = ("task",)

    task: Filled = option(
        "Name of an lm-eval task, group or tag. The tasks of a group share `limit` in proportion "
        "to their sizes."
    )
    split: Split = _SPLIT
    limit: int | None = _LIMIT
    num_fewshot: int = NUM_FEWSHOT
    fewshot_seed: int = EXAMPLES_SEED
    seed: int = entry.seed_option()
    trust_code: bool = trust_code_option()
    answers: Literal["gold", "model"] = _ANSWERS
    keep: Literal["all", "right"] = _KEEP
    temperature: float = _TEMPERATURE


class Tasks(Calibration):
    """Documents of several lm-eval tasks or groups, mixed."""

    MARKS = ("tasks",)

    tasks: list[Filled] = option("Names of the lm-eval tasks, groups or tags to mix.", min_length=1)
    fraction: float = option("Share of each task's documents to draw.", 0.1, gt=0, le=1)
    split: Split = _SPLIT
    num_fewshot: int = NUM_FEWSHOT
    fewshot_seed: int = EXAMPLES_SEED
    seed: int = entry.seed_option()
    trust_code: bool = trust_code_option()
    answers: Literal["gold", "model"] = _ANSWERS
    keep: Literal["all", "right"] = _KEEP
    temperature: float = _TEMPERATURE


class Text(Calibration):
    """Documents of a file or of the embedded corpus, one sample each, truncated to `length`."""

    MARKS = ("text",)

    text: UserPath = TEXT
    documents: Documents | None = _DOCUMENTS
    length: int = _LENGTH
    min_tokens: int | None = _MIN_TOKENS
    joined: str | None = _JOINED
    split: Split = _SPLIT
    answers: Literal["gold", "model"] = _ANSWERS
    temperature: float = _TEMPERATURE
    prompt: int = _PROMPT


class HubTexts(Entry):
    """Texts of a data set on the Hugging Face hub, or of a folder with files of the same format.

    Calibrations and perplexities read them by these keys.
    """

    hub: UserPath = option("Data set id (`organisation/name`), or a folder that holds a data set.")
    name: Filled | None = option(
        "Configuration (subset) of the data set, such as `en`; `null` if it has only one.", None
    )
    revision: Filled | None = option(
        "Commit, tag or branch. Needed for an id, ignored for a folder.", None
    )
    split: Filled = _SPLIT
    field: Filled = option(
        "Field that holds the text of a document, or its list of conversation turns.", "text"
    )
    template: Filled | None = option(
        "Template for texts from several fields, in braces, such as "
        '`"{instruction}\\n\\n{output}"`; `null` takes `field` alone.',
        None,
    )
    documents: Documents | None = _DOCUMENTS
    joined: str | None = _JOINED
    streaming: bool = option(
        "Whether only the requested documents are downloaded; `false` first downloads the whole "
        "split into the hub cache.",
        True,
    )

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if self.template is not None and not self.fields:
            raise invalid(
                'write the names of fields in braces, such as "{instruction}\\n\\n{output}".',
                "template",
            )
        return self

    @property
    def fields(self) -> list[str]:
        """The fields of a document that are read."""
        if self.template is None:
            return [self.field]
        return re.findall(TEMPLATE_FIELD, self.template)


class Hub(Calibration, HubTexts):
    """Texts of a data set on the Hugging Face hub, one sample per document, truncated to `length`.

    Only the job that prepares the calibration needs the network, and it runs on the node where you
    start lamina. A folder with files of the same format (.json.gz, .jsonl, .parquet, .arrow) needs
    no network.
    """

    MARKS = ("hub",)

    split: Split = _SPLIT
    length: int = _LENGTH
    min_tokens: int | None = _MIN_TOKENS
    answers: Literal["gold", "model"] = _ANSWERS
    temperature: float = _TEMPERATURE
    prompt: int = _PROMPT


class Mixture(Calibration):
    """Samples of other calibrations; tasks and texts may be mixed."""

    MARKS = ("mixture",)

    mixture: Weights = option(
        "Weights of the other calibrations, by name; they set the shares of the samples.",
        allowed="weights above 0 by calibration, such as {arc: 2, c4: 1}",
        min_length=1,
    )
    limit: int | None = option(
        "Number of samples drawn; `null` takes as many as the shares allow.", None, ge=1
    )
    seed: int = entry.seed_option()


class Choices(Calibration):
    """Your own questions, one per line of the file; `gold` is the index of the right choice from 0:

    ```
    {"query": "Water freezes at", "choices": ["0 degrees", "50 degrees"], "gold": 0}
    ```
    """

    MARKS = ("choices",)

    choices: UserPath = option(
        "A .jsonl file with your own questions: `query`, `choices` and `gold` in each line."
    )
    limit: int | None = _LIMIT
    num_fewshot: int = NUM_FEWSHOT
    fewshot_seed: int = EXAMPLES_SEED
    seed: int = entry.seed_option()
