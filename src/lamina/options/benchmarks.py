"""Section `benchmarks`: what is measured on the variants, and on the base model for comparison."""

import itertools
from typing import Annotated, ClassVar, NamedTuple, Self

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
    """Answers that the model writes with its cache.

    Measured are the exact match with the right answer (also where the task is a choice), how much
    answers repeat themselves, and pass@k of sampled answers.
    """

    max_tokens: int | None = option(
        "Longest answer, in tokens.", None, ge=1, shown_default="what the task says, 32 for choices"
    )
    ngram: int = option(
        "`repetition` is the share of repeated n-grams; their n, in tokens.", 4, ge=1
    )
    samples: int = option("Answers sampled per question; 0 takes only the likeliest one.", 0, ge=0)
    pass_at: list[Annotated[int, Field(ge=1)]] = option(
        "The k of pass@k, at most `samples`.", [], shown_default="1 and `samples`"
    )
    temperature: float = option("Temperature of the samples.", 0.8, gt=0)
    seed: int = option("Seed of the samples.", 0, ge=0)

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
    """An lm-eval task, or questions of your own in a file.

    `tasks: own` in a study finds a task by the name that a calibration draws from. Questions of
    your own are in two files, one to calibrate and one to test; give the calibration and the
    benchmark the same name.
    """

    # Written answers have jobs of their own, so asking for them measures nothing again.
    ASIDE: ClassVar[tuple[str, ...]] = ("generate",)

    num_fewshot: int = NUM_FEWSHOT
    fewshot_seed: int = EXAMPLES_SEED
    limit: int | None = option(
        "Number of test documents, the first ones (of each task of a group); `null` takes all.",
        None,
        ge=1,
    )
    choices: UserPath | None = option(
        "A .jsonl file of your own test questions; the name is then yours to choose.", None
    )
    trust_code: bool = trust_code_option()
    generate: Generate | None = option(
        "What the model writes itself is measured too. `{}` measures the likeliest answers.",
        None,
    )


class PerplexityEntry(Choice):
    """How well the next token of a text is predicted.

    The key that is there says where the text is from: `text` or `hub`.
    """

    documents: Documents | None = option(
        "Half-open range of documents; `null` takes all.", None, allowed=DOCUMENTS_ALLOWED
    )
    window: int = option(
        "Tokens the model sees at once. Perplexities of different windows do not compare.", ge=2
    )
    joined: str | None = option(
        'What joins the documents to one stream, as most papers do with `"\\n\\n"`: windows do not '
        "overlap, the first token of each is not scored, and what does not fill the last one is "
        "dropped. Left out, every document has its own windows.",
        None,
    )
    stride: int | None = option(
        "Tokens by which the window moves on; left out, a whole window.", None, ge=1
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
    """Documents of a data set of the Hugging Face hub, read as a calibration reads them.

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
    """Speed and memory as ratios to the base model, which is measured in turn with each variant.

    `prompt: [64, 512]` and `batch: [1, 8]` measure all four pairs. The page, its cards and all
    comparisons take the first of each, here 64 and 1; the figure `efficiency_grid` and table
    `efficiency` have every pair.
    """

    prompt: Counts = option("Tokens of the prompt, or a list.", 64)
    generate: int = option("Tokens generated after it.", 32, ge=1)
    batch: Counts = option("Sequences at once, or a list.", 1)
    repeats: int = option(
        "Timed runs, in turn with the base model; error bars come from them.", 5, ge=2
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
        "lm-eval tasks, groups or tags by their lm-eval name, or tasks of your own (`choices`) by "
        "any name.",
        {},
    )
    perplexity: Named[PerplexityEntry] = option(
        "Texts on which perplexity is measured, by name.", {}
    )
    efficiency: Efficiency | None = option(
        "Latency, throughput and memory compared with the base model. Left out, they are not "
        "measured.",
        None,
    )
