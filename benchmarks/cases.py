"""What the benchmarks run on: models, samples, and how memory is watched."""

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from lamina.data import calibrations, documents, encoding, lm_tasks
from lamina.data.calibrations import Row, Sample
from lamina.data.prepare import text_samples

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "resources/reference"
TASKS = ("recall", "facts", "hops", "addition", "comparison", "boolean", "sorting")
# Two choices whose log-likelihoods are nearer than this may be decided by rounding.
NEAR_TIE = 1e-4
GREEDY = "addition"  # its choices are several tokens long


@dataclass(frozen=True)
class Case:
    """A model and samples; `steps` units are removed one after the other, the least relevant by `metric`."""

    name: str
    model: PreTrainedModel
    samples: list[Sample]
    steps: int = 1
    metric: str = "accuracy"


def deep_model() -> PreTrainedModel:
    """24 random layers, enough for the layer sharing to show."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=24,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def random_documents(
    count: int, context: tuple[int, int], choices: int, answer: tuple[int, int]
) -> list[Sample]:
    """Multiple-choice documents of random tokens, with lengths drawn from the two ranges."""
    draw = random.Random(0)

    def words(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(4, 278) for _ in range(draw.randint(low, high)))

    samples = []
    for index in range(count):
        before = words(*context)
        rows = tuple(Row(before, words(*answer), 4) for _ in range(choices))
        samples.append(Sample(index, "choices", 0, rows, str(index)))
    return samples


def real_documents(
    prose: list[int], count: int, context: tuple[int, int], choices: int, answer: tuple[int, int]
) -> list[Sample]:
    """Multiple-choice documents from running text: the gold choice is what follows, the others follow elsewhere."""
    draw = random.Random(0)
    samples = []
    for index in range(count):
        length, sizes = draw.randint(*context), [draw.randint(*answer) for _ in range(choices)]
        places = [draw.randrange(length, len(prose) - max(sizes)) for _ in range(choices)]
        before = tuple(prose[places[0] - length : places[0]])
        answers = [
            tuple(prose[place : place + size]) for place, size in zip(places, sizes, strict=True)
        ]
        if len(set(answers)) < choices:
            answers = [answers[0], *((token,) for token in draw.sample(range(4, 278), choices - 1))]
        rows = tuple(Row(before, tokens, len(tokens)) for tokens in answers)
        samples.append(Sample(index, "choices", 0, rows, str(index)))
    return samples


def cases(chosen: Sequence[str]) -> Iterator[Case]:
    """All cases, or those with the names given."""
    reference = AutoModelForCausalLM.from_pretrained(REFERENCE, use_safetensors=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    recorder = encoding.open_encoder(reference, tokenizer)
    file = documents.corpus_file(documents.CORPUS, "train", ROOT)

    def task(name: str, count: int = 200) -> list[Sample]:
        definition = lm_tasks.task_object(f"microworld_{name}", ROOT, split="train")
        return lm_tasks.task_samples(definition, recorder, count, 0)

    def prose() -> list[int]:
        return [
            token
            for part in documents.read_documents(file, "0:400")
            for token in calibrations.encode_document(tokenizer, part)
        ]

    every: dict[str, Callable[[], Case]] = {
        "deep": lambda: Case("deep", deep_model(), random_documents(16, (40, 80), 4, (4, 12))),
        **{
            f"microworld_{name}": (
                lambda name=name: Case(f"microworld_{name}", reference, task(name))
            )
            for name in TASKS
        },
        # lm-eval tells whether a whole text is predicted, not its last token, so texts are compared by their loss.
        "text": lambda: Case(
            "text",
            reference,
            text_samples(documents.read_documents(file, "0:100"), tokenizer, 64),
            metric="perplexity",
        ),
        "long_context": lambda: Case(
            "long_context", reference, real_documents(prose(), 100, (120, 220), 2, (1, 2))
        ),
        "one_token": lambda: Case(
            "one_token", reference, real_documents(prose(), 200, (40, 80), 4, (1, 1))
        ),
        "greedy": lambda: Case("greedy", reference, task(GREEDY, 1000), steps=3),
    }
    unknown = sorted(set(chosen) - set(every))
    if unknown:
        raise SystemExit(f"there is no case '{unknown[0]}'. Write some of: {', '.join(every)}.")
    yield from (make() for name, make in every.items() if not chosen or name in chosen)


def pass_bytes(config: Any, tokens: int, length: int, bytes_each: int) -> int:
    """Memory of one pass above model and process, predicted from its budget of `tokens` in lines of `length` tokens.

    Widest at the MLP of the last layers, where per token there stand the stream, its copy for the residual, the norm's
    output and the MLP's three inner activations; and, as long as the layers run, each line's row of the mask.
    """
    text = config.get_text_config()
    channels = text.hidden_size
    inner = getattr(text, "intermediate_size", None) or 4 * channels
    return tokens * bytes_each * (6 * channels + 3 * inner + length)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of memory that `work` needs at most, above what the process holds before; on a GPU, of that GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    page = os.sysconf("SC_PAGE_SIZE")
    status = Path("/proc/self/statm")

    def resident() -> int:
        return int(status.read_text().split()[1]) * page

    before, peak, done = resident(), resident(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return peak - before
