"""`lamina chat`: what the base model and a variant write after the same prompt, side by side."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from lamina import paths
from lamina.errors import LaminaError
from lamina.evaluation.assembly import read_parts
from lamina.evaluation.tasks import likeliest_tokens
from lamina.loading import find_by_name
from lamina.models.checkpoint import stated_context
from lamina.models.load import load_model, load_tokenizer
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of

FILE_WIDTH = 100  # characters per line if there is no terminal


class Reply(NamedTuple):
    """What a model writes after a prompt."""

    text: str
    n_tokens: int
    seconds: float
    """Seconds for the prompt and the reply."""


class Pair:
    """A variant and its base model, which share their weights, and the tokenizer of both."""

    def __init__(self, name: str, results: Path) -> None:
        """Load a variant by its name. Raises LaminaError if it has not been made."""
        named = find_by_name(name, results)
        if named.variant is None or named.variant.is_base:
            raise LaminaError(f"'{name}' is the base model, with which a variant is compared.")
        base = load_model(named.manifest)
        parts = read_parts(named.variant, paths.variant_files(named.variant, results))
        self.tokenizer = load_tokenizer(named.manifest)
        self.models = {
            "base model": base,
            str(named.variant): materialise(base, *parts),
        }
        for model in self.models.values():
            write_reply(model, self.tokenizer, "a", 1)  # starts threads and kernels

    def reply(self, prompt: str, most_tokens: int) -> Table:
        """The replies of both as two columns."""
        table = Table(expand=True, show_footer=True)
        cells: list[str] = []
        for name, model in self.models.items():
            reply = write_reply(model, self.tokenizer, prompt, most_tokens)
            speed = reply.n_tokens / reply.seconds
            table.add_column(
                f"{name}, {len(layers_of(model))} layers",
                f"{reply.n_tokens} tokens in {reply.seconds:.2f} s: {speed:.3g} tokens/s",
                ratio=1,
                overflow="fold",
            )
            cells.append(reply.text.strip())
        table.add_row(*cells)
        return table


def write_reply(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, most_tokens: int
) -> Reply:
    """The likeliest tokens after a prompt, at most `most_tokens`.

    Raises LaminaError if the prompt fills the model's context.
    """
    encoded = _encode_prompt(tokenizer, prompt).to(model.device)
    n_prompt_tokens = encoded["input_ids"].shape[1]
    context = stated_context(model.config.to_dict())
    if context is not None:
        most_tokens = min(most_tokens, context - n_prompt_tokens)
    if most_tokens < 1:
        raise LaminaError(
            f"the prompt has {n_prompt_tokens} tokens, and the model reads {context} at once. "
            "Shorten it."
        )
    start_time = time.perf_counter()
    with torch.inference_mode(), likeliest_tokens(model):
        generator: Any = model
        token_ids = generator.generate(**encoded, max_new_tokens=most_tokens, do_sample=False)
    written_ids = token_ids[0, n_prompt_tokens:].tolist()  # waits for the device
    seconds = time.perf_counter() - start_time
    text = str(tokenizer.decode(written_ids, skip_special_tokens=True))
    return Reply(text, len(written_ids), seconds)


def _encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> BatchEncoding:
    """The prompt in the tokenizer's chat template, or unchanged if it has none."""
    if not tokenizer.chat_template:
        return tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    encoded = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    assert isinstance(encoded, BatchEncoding)  # as `return_dict` asks for
    return encoded


def chat(name: str, prompt: str | None, most_tokens: int, results: Path) -> None:
    """Print replies to one prompt, or to each one that a user types, without the previous ones."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    pair = Pair(name, results)
    for asked in [prompt] if prompt is not None else _read_prompts():
        console.print(pair.reply(asked, most_tokens))


def _read_prompts() -> Iterator[str]:
    """Prompts that a user types, until an empty line or the end of the input."""
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            return
        if not prompt.strip():
            return
        yield prompt
