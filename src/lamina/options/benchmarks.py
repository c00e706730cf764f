"""Section `benchmarks`: what is measured on the variants, and on the base model for comparison."""

import itertools
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from lamina.options.calibrations import (
    EXAMPLES_SEED,
    NUM_FEWSHOT,
    TEXT,
    HubTexts,
    trust_code_option,
)
from lamina.options.entry import (
    DOCUMENTS_ALLOWED,
    Choice,
    Documents,
    Entry,
    Filled,
    Named,
    UserPath,
    option,
)
from lamina.options.explain import invalid


class Generate(Entry):
    """Answers that the model generates with a KV cache.

    The metrics are exact match with the right answer (for multiple choice too), repetition and
    length of the answers, and pass@k of sampled answers.
    """

    max_tokens: int | None = option(
        "Longest answer, in tokens.",
        None,
        ge=1,
        shown_default="the task's limit; 32 for multiple choice",
    )
    ngram: int = option("The n, in tokens, of the n-grams that `repetition` counts.", 4, ge=1)
    samples: int = option(
        "Answers sampled per question; 0 measures only the greedy answer.", 0, ge=0
    )
    pass_at: list[Annotated[int, Field(ge=1)]] = option(
        "Values of k for pass@k, at most `samples`.", [], shown_default="1 and `samples`"
    )
    temperature: float = option("Sampling temperature.", 0.8, gt=0)
    seed: int = option("Sampling seed.", 0, ge=0)

    @model_validator(mode="after")
    def _check_pass_at(self) -> Self:
        largest_k = max(self.pass_at, default=0)
        if largest_k > self.samples:
            raise invalid(
                f"pass@{largest_k} needs {largest_k} samples, but there are {self.samples}. Write "
                f"samples: {largest_k} or more, or a smaller k.",
                "pass_at",
            )
        return self

    @property
    def ks(self) -> list[int]:
        """The k of pass@k that are measured."""
        if not self.samples:
            return []
        return sorted(set(self.pass_at or [1, self.samples]))


class TaskEntry(Entry):
    """An lm-eval task, or your own questions in a file.

    With `tasks: own`, a study measures the tasks that its calibration samples. Put your own
    questions in two files, one to calibrate and one to test, and give the calibration and the
    benchmark the same name.
    """

    # Written answers have jobs of their own, so asking for them measures nothing again.
    ASIDE: ClassVar[tuple[str, ...]] = ("generate",)

    num_fewshot: int = NUM_FEWSHOT
    fewshot_seed: int = EXAMPLES_SEED
    limit: int | None = option(
        "Number of test documents: the first ones (of each task in a group); `null` takes all.",
        None,
        ge=1,
    )
    choices: UserPath | None = option(
        "A .jsonl file with your own test questions; you may then choose any name.", None
    )
    trust_code: bool = trust_code_option()
    generate: Generate | None = option(
        "Also measures answers that the model generates. `{}` measures greedy answers.",
        None,
    )

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `lamina.data.lm_tasks.load_task` after the task's name and folder."""
        return self.model_dump(include={"num_fewshot", "choices", "trust_code", "fewshot_seed"})


class PerplexityEntry(Choice):
    """How well the model predicts the next token of a text.

    The key `text` or `hub` says where the text comes from.
    """

    documents: Documents | None = option(
        "Half-open range of documents; `null` takes all.", None, allowed=DOCUMENTS_ALLOWED
    )
    window: int = option(
        "Window length in tokens. Perplexities with different windows are not comparable.", ge=2
    )
    joined: str | None = option(
        'String that joins the documents into one stream, as most papers do with `"\\n\\n"`. '
        "Windows do not overlap, the first token of each is not scored, and an incomplete last "
        "window is dropped. Left out, every document has its own windows.",
        None,
    )
    stride: int | None = option(
        "Stride of the window in tokens; left out, the length of the window.", None, ge=1
    )

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        if self.joined is not None and self.stride not in (None, self.window):
            raise invalid(
                "windows of joined documents do not overlap. Leave `stride` or `joined` out.",
                "stride",
            )
        if self.stride is not None and self.stride > self.window:
            raise invalid(
                f"{self.stride} would skip tokens between windows of {self.window}. Write at most "
                f"{self.window}, or leave it out.",
                "stride",
            )
        return self


class TextEntry(PerplexityEntry):
    """Documents of a file or of the embedded corpus."""

    MARKS = ("text",)

    text: UserPath = TEXT
    split: Filled = option("Split of `microworld_corpus`; ignored for a file.", "test")


class HubEntry(PerplexityEntry, HubTexts):
    """Documents of a data set on the Hugging Face hub, read as for a calibration.

    Only the job that prepares the benchmark needs the network, and it runs on the node where you
    start lamina.
    """

    MARKS = ("hub",)

    split: Filled = option("Split of the data set.", "test")


Count = Annotated[int, Field(ge=1)]
Counts = Count | Annotated[list[Count], Field(min_length=1)]


class Load(NamedTuple):
    """What a model is timed with: so many sequences of so many tokens at once."""

    prompt: int
    batch: int


class Efficiency(Entry):
    """Speed and memory relative to the base model, which is timed alternately with each variant.

    `prompt: [64, 512]` and `batch: [1, 8]` measure all four pairs. The report and all comparisons
    use the first of each, here 64 and 1. The figure `efficiency_grid` and the table `efficiency`
    show every pair.
    """

    prompt: Counts = option("Prompt length in tokens, or a list.", 64)
    generate: int = option("Tokens generated after the prompt.", 32, ge=1)
    batch: Counts = option("Batch size in sequences, or a list.", 1)
    repeats: int = option(
        "Timed runs, alternating with the base model; they give the error bars.", 5, ge=2
    )

    @property
    def loads(self) -> list[Load]:
        """Every pair of a prompt and a batch, each once; the first is the main one."""
        pairs = itertools.product(_as_list(self.prompt), _as_list(self.batch))
        return list(dict.fromkeys(Load(prompt, batch) for prompt, batch in pairs))


def _as_list(counts: Counts) -> list[int]:
    return counts if isinstance(counts, list) else [counts]


class Benchmarks(Entry):
    """Everything that is measured on variants."""

    tasks: Named[TaskEntry] = option(
        "lm-eval tasks, groups or tags by their lm-eval names, or your own tasks (`choices`) by "
        "any name.",
        {},
    )
    perplexity: Named[PerplexityEntry] = option(
        "Texts on which perplexity is measured, by name.", {}
    )
    efficiency: Efficiency | None = option(
        "Latency, throughput and memory relative to the base model; not measured if left out.",
        None,
    )
