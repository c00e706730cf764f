"""What Qwen2.5-Coder-1.5B writes without a quarter of its layers, and how fast: reports/qwen-quarter.md.

    lamina run config/qwen-1.5b-quarter.yaml
    lamina export qwen-1.5b-chat/written/portfolio/removed=7/none/lora config/qwen-1.5b-quarter.yaml
    lamina run config/qwen-1.5b-distilled.yaml
    lamina export qwen-1.5b-chat/chat/quarter/removed=7/none/distilled config/qwen-1.5b-distilled.yaml
    pip install --no-deps cyllama==0.2.18        # llama.cpp
    PYTHONPATH=src python reports/scripts/quarter.py

In the folder of the run. The trained weights, in bfloat16, take the place of the layers' in the base model's GGUF file,
and llama.cpp quantises the result as the base model is. Texts are written by the likeliest tokens, speeds measured in
turn. A table of the page stands between `<!-- NAME -->` and `<!-- end -->`.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cyllama import LLM, GenerationConfig
from cyllama.llama import llama_cpp
from gguf import MODEL_ARCH, get_tensor_name_map
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lamina.models import gguf
from lamina.models.export.gguf_file import copy_layers
from lamina_workflow.commands.chat import write_reply

BASE = "base model"
# The same seven layers are gone.
VARIANTS = {
    "trained on questions": "qwen-1.5b-chat/written/portfolio/removed=7/none/lora",
    "trained on its own answers": "qwen-1.5b-chat/chat/quarter/removed=7/none/distilled",
}
EXPORTS = Path("results/exports")
FOLDER = Path("results/quarter")
BASE_FILE = Path("models/qwen-1.5b.gguf").resolve()
PAGE = Path("reports/qwen-quarter.md")
MOST_TOKENS = 80
TIMED_TOKENS = 48
ROUNDS = 3
Q4_K_M = 15  # llama.cpp's LLAMA_FTYPE_MOSTLY_Q4_K_M
BFLOAT16 = 30  # of a tensor in a GGUF file
PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "What does the keyword `yield` do in Python?",
    "Write a SQL query that counts the orders of each customer.",
    "Write a regular expression that matches a date such as 2024-05-31.",
    "Explain in two sentences what a hash table is.",
    "Lena has 24 apples and gives a third of them to Omar. How many has she left?",
    "Give the data of this sentence as JSON: Anna Meyer, 34, lives in Hamburg.",
    "Translate into French: The weather is nice today.",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
)


def quantised_file(variant: str) -> Path:
    return FOLDER / f"{Path(variant).name}-q4_k_m.gguf"


def write_trained_file(variant: str) -> None:
    """The base model's GGUF file without the removed layers, and with the trained weights."""
    plan_file = Path("results/plans") / f"{Path(variant).parents[1]}.json"
    plan = json.loads(plan_file.read_text("utf-8"))
    n_layers, _ = gguf.read_shape(BASE_FILE, str(BASE_FILE))
    kept_layers = [layer for layer in range(n_layers) if str(layer) not in plan["units"]]
    FOLDER.mkdir(parents=True, exist_ok=True)
    cut_file = FOLDER / "cut.gguf"
    trained_file = FOLDER / "trained-bf16.gguf"
    copy_layers(BASE_FILE, cut_file, kept_layers)

    header = gguf.read_header(cut_file, str(cut_file))
    tensors = dict(header.tensors)
    names = get_tensor_name_map(MODEL_ARCH.QWEN2, len(kept_layers))
    raw_file = cut_file.with_suffix(".raw")
    with raw_file.open("wb") as raw:
        for weights_file in sorted((EXPORTS / variant).glob("*.safetensors")):
            with safe_open(weights_file, "pt") as weights:
                weight_names = weights.keys()
                for name in weight_names:
                    stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
                    weight = weights.get_tensor(name)
                    if weight.ndim == 2 and stored_name.startswith("blk."):
                        numbers = weight.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
                        tensors[stored_name] = gguf.StoredTensor(
                            stored_name,
                            tuple(weight.shape),
                            BFLOAT16,
                            raw_file,
                            raw.tell(),
                            numbers.nbytes,
                        )
                        raw.write(numbers.tobytes())
    gguf.write_gguf(trained_file, header.settings, tensors.items())
    raw_file.unlink()
    options = llama_cpp.LlamaModelQuantizeParams()
    options.ftype = Q4_K_M
    options.allow_requantize = True  # embeddings and head have their final format
    llama_cpp.model_quantize(str(trained_file), str(quantised_file(variant)), options)
    trained_file.unlink()


def write_with_llama_cpp(
    file: Path, tokenizer: Any
) -> Callable[[str, int], tuple[str, int, float]]:
    """A function that writes text, its tokens and seconds with a GGUF file."""
    config = GenerationConfig(
        temperature=0.0, repeat_penalty=1.0, n_gpu_layers=0, n_ctx=1024, add_bos=False
    )
    model = LLM(str(file), config=config)

    def write(prompt: str, most_tokens: int) -> tuple[str, int, float]:
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        config.max_tokens = most_tokens
        began = time.perf_counter()
        written = str(model(text, config=config))
        seconds = time.perf_counter() - began
        return written, len(tokenizer(written)["input_ids"]), seconds

    return write


def write_with_transformers(
    model: PreTrainedModel, tokenizer: Any
) -> Callable[[str, int], tuple[str, int, float]]:
    """The same with transformers."""

    def write(prompt: str, most_tokens: int) -> tuple[str, int, float]:
        return tuple(write_reply(model, tokenizer, prompt, most_tokens))

    return write


def replace_table(page: str, name: str, table: str) -> str:
    """The page with a new table between its marks."""
    before, start, after = page.partition(f"<!-- {name} -->\n")
    _, end, after = after.partition("<!-- end -->")
    return before + start + table + end + after


def list_replies(writers: dict[str, Any]) -> str:
    """What each model writes after each prompt."""
    lines: list[str] = []
    for prompt in PROMPTS:
        lines.append(f"\n**{prompt}**\n")
        for name, write in writers.items():
            text, n_tokens, _ = write(prompt, MOST_TOKENS)
            cut = " …" if n_tokens >= MOST_TOKENS else ""
            quoted = "\n".join(f"> {line}".rstrip() for line in (text.strip() + cut).splitlines())
            lines.append(f"{name}:\n\n{quoted}\n")
    return "\n".join(lines)


def compare_speeds(writers: dict[str, Any], sizes: dict[str, int]) -> str:
    """Tokens per second of each model, in turn; the first round is a warm-up."""
    speeds: dict[str, list[float]] = {name: [] for name in writers}
    for turn in range(ROUNDS + 1):
        for name, write in writers.items():
            _, n_tokens, seconds = write(PROMPTS[0], TIMED_TOKENS)
            if turn:
                speeds[name].append(n_tokens / seconds)
    lines = ["| model | MB | tokens per second, median | lowest to highest |", "|---|---|---|---|"]
    for name, values in speeds.items():
        lines.append(
            f"| {name} | {sizes[name] / 1e6:,.0f} | {statistics.median(values):.1f} "
            f"| {min(values):.1f} to {max(values):.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(2)
    for variant in VARIANTS.values():
        if not quantised_file(variant).exists():
            write_trained_file(variant)
    manifest = json.loads(Path("results/models/qwen-1.5b-chat/manifest.json").read_text("utf-8"))
    folders = {BASE: Path(manifest["path"])}
    files = {BASE: BASE_FILE}
    for name, variant in VARIANTS.items():
        folders[f"without 7 layers, {name}"] = EXPORTS / variant
        files[f"without 7 layers, {name}"] = quantised_file(variant)
    tokenizer = AutoTokenizer.from_pretrained(manifest["path"])
    in_torch: dict[str, Any] = {}
    for name, folder in folders.items():
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        in_torch[f"{name}, transformers, bfloat16"] = write_with_transformers(loaded, tokenizer)
    in_cpp = {
        f"{name}, llama.cpp, Q4_K_M": write_with_llama_cpp(file, tokenizer)
        for name, file in files.items()
    }
    bytes_of = {
        f"{name}, transformers, bfloat16": sum(
            file.stat().st_size for file in folder.resolve().glob("*.safetensors")
        )
        for name, folder in folders.items()
    }
    bytes_of |= {f"{name}, llama.cpp, Q4_K_M": file.stat().st_size for name, file in files.items()}
    text = PAGE.read_text("utf-8")
    text = replace_table(text, "speeds", compare_speeds(in_torch | in_cpp, bytes_of))
    text = replace_table(text, "replies", list_replies(in_cpp))
    PAGE.write_text(text, "utf-8")
