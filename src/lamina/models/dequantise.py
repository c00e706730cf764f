"""A GGUF file or a quantised folder as an ordinary checkpoint: config.json, safetensors and the tokenizer's files.

    python -m lamina.models.dequantise FILE.gguf FOLDER

transformers reads weights and settings. This module refuses what transformers would drop without a message: a tensor
that has no place in the model, a setting that it does not know, and a way of cutting text that its tokenizer does not
have.
"""

import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.quantizers import AutoQuantizationConfig

from lamina.errors import LaminaError, at, explained
from lamina.models import gguf
from lamina.models.checkpoint import check_loadable, decoder_settings, quantisation, read_settings
from lamina.models.load import check_whole, load_folder
from lamina.models.manifest import loading
from lamina.models.structure import text_config
from lamina.models.tokenizer import read_tokenizer, special_behind
from lamina.store import parquet as store

_logger = logging.getLogger(__name__)

# Settings that repeat other settings, or that change no number.
_REPEATED = ("vocab_size", "rope.dimension_count", "attention.key_length", "attention.value_length")
# Byte-level vocabularies, by the file's name for their way of cutting text before merges. These split digits first.
_DIGITS = ("smollm", "starcoder", "refact")
_AS_GPT2 = ("gpt-2", "olmo", "mpt")
# Kinds of tokenizers that are built from the file's scores and need no such name.
_SENTENCES = ("llama", "t5")
# What is encoded before and after saving.
_TEXTS = ("a", " A b", "The 12th naïve answer,\n\n\tit's 3.5", "中文 ✓", "a<s></s><|im_end|> b")


def dequantise(path: Path, folder: Path, dtype: str = "auto", where: str = "source") -> None:
    """Write the model in a GGUF file, or beside a config.json, to `folder` in `dtype`; nothing stays quantised.

    `auto` is float32 for a GGUF file, and else the type that config.json says. A tokenizer.json beside a GGUF file
    replaces the tokenizer that the file describes.

    Raises LaminaError if the file is damaged, or holds something that would be lost. Then no folder is left behind.
    """
    if path.name == "config.json":
        _dequantise_folder(path.parent, folder, dtype, where)
        return
    settings, _ = gguf.read(path, where)
    model = read_model(path, dtype, where)
    try:
        tokenizer = _tokenizer(settings, path, where)
    except (MemoryError, LaminaError):
        raise
    except Exception as error:
        why = f"has a tokenizer that does not load ({type(error).__name__}: {error})"
        raise _no_tokenizer(path, where, why) from error
    _forget_quantisation(model)
    with store.replacing(folder) as temporary:
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        again = read_tokenizer(temporary, local_files_only=True)
        if any(again(text)["input_ids"] != tokenizer(text)["input_ids"] for text in _TEXTS):
            raise _no_tokenizer(path, where, "has a tokenizer that loads back as another one")
    _logger.warning("%s: dequantised %s into %s, once.", where, path, folder)


def read_model(path: Path, dtype: str, where: str) -> PreTrainedModel:
    """The model in a GGUF file with its weights in `dtype`, by default float32.

    Raises LaminaError as `dequantise` does.
    """
    settings, sizes = gguf.read(path, where)
    _check_settings(settings, path, where)
    kind: Any = AutoModelForCausalLM
    with at(where), loading(path.name, path.parent):
        model, loading_info = kind.from_pretrained(
            path.parent,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which `check_whole` names
            gguf_file=path.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype),
            local_files_only=True,
            trust_remote_code=False,
        )
    _check_tensors(model, sizes, path, where)
    with at(where):  # a tensor of another name, and the one that it should be
        check_whole(path.name, loading_info)
    read: PreTrainedModel = model.eval()
    return read


def _dequantise_folder(source: Path, folder: Path, dtype: str, where: str) -> None:
    """The same for a folder whose weights are in one of the formats that transformers reads on any machine."""
    settings = read_settings(source, where, str(source))
    check_loadable(source, settings, where, str(source))
    stated = decoder_settings(settings)["quantization_config"]
    options: dict[str, Any] = {}
    if quantisation(settings) != "bitsandbytes":
        options["quantization_config"] = AutoQuantizationConfig.from_dict(
            stated | {"dequantize": True}
        )
    model = load_folder(source, dtype, False, **options)
    if not options:
        model = model.dequantize(None if dtype == "auto" else getattr(torch, dtype))
    if odd := [name for name, weight in model.named_parameters() if not weight.is_floating_point()]:
        raise LaminaError(
            f"{where}: {source} keeps {odd[0]} quantised. Write the checkpoint that it was made from."
        )
    _forget_quantisation(model)
    with store.replacing(folder) as temporary:
        shutil.rmtree(folder, ignore_errors=True)
        # Names as transformers has them: the original format is the quantised one.
        model.save_pretrained(temporary, save_original_format=False)
        for file in source.iterdir():
            if file.is_file() and not str(file).endswith(
                (".safetensors", ".index.json", "/config.json")
            ):
                shutil.copyfile(file, temporary / file.name)
        again, wanted = load_folder(temporary, "auto", False).state_dict(), model.state_dict()
        if any(not torch.equal(again[name], weight) for name, weight in wanted.items()):
            raise LaminaError(
                f"{where}: {source} does not load back as it was read. Dequantise it by other means."
            )
    _logger.warning("%s: dequantised %s into %s, once.", where, source, folder)


def _forget_quantisation(model: PreTrainedModel) -> None:
    """The saved model is an ordinary one. With this key, loading would refuse it or look for quantised weights."""
    for config in (model.config, text_config(model)):
        if hasattr(config, "quantization_config"):
            del config.quantization_config
    model.__dict__.pop("hf_quantizer", None)


def _check_settings(settings: dict[str, Any], path: Path, where: str) -> None:
    """Refuse a model with settings that transformers does not read."""
    family = settings["general.architecture"]
    known: Any = GGUF_CONFIG_MAPPING.get(family)
    if known is None:
        raise LaminaError(
            f"{where}: {path} holds a model of family '{family}', which transformers does not read from GGUF. Take "
            "its checkpoint with safetensors weights."
        )
    names = [key.removeprefix(f"{family}.") for key in settings if key.startswith(f"{family}.")]
    lost = [name for name in names if name not in known and name not in _REPEATED]
    if lost:
        raise LaminaError(
            f"{where}: {path} has settings that would be lost ({', '.join(lost)}), and numbers with them. Take the "
            "model's checkpoint with safetensors weights."
        )


def _check_tensors(model: PreTrainedModel, sizes: dict[str, int], path: Path, where: str) -> None:
    """Refuse a file that holds more or fewer numbers than its model, or a model that is still quantised."""
    parameters = list(model.parameters())
    if any(not parameter.is_floating_point() for parameter in parameters):
        raise LaminaError(
            f"{where}: {path} holds a number format that does not become floating point numbers."
        )
    needed = sum(parameter.numel() for parameter in parameters)
    if sum(sizes.values()) != needed:
        odd = [name for name in sizes if not name.startswith(("blk.", "token_embd", "output"))]
        more = f" Tensors that have no place in it: {', '.join(odd)}." if odd else ""
        raise LaminaError(
            f"{where}: {path} holds {sum(sizes.values())} numbers and its model {needed}.{more} Take the model's "
            "checkpoint with safetensors weights."
        )


def _tokenizer(settings: dict[str, Any], path: Path, where: str) -> PreTrainedTokenizerBase:
    if (path.parent / "tokenizer.json").is_file():
        return read_tokenizer(path.parent, local_files_only=True)
    kind, cut = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre")
    known: set[Any] = {*_DIGITS, *_AS_GPT2, *GGUF_PRE_TOKENIZER_SPLITS}
    if kind not in _SENTENCES and cut not in known:
        raise _no_tokenizer(path, where, f"cuts text in the way '{cut}', which is not known here")
    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    if cut in _DIGITS:
        # Without this, "\n\n1" would be cut into other pieces: white space before a digit does not belong to it.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    _check_flags(tokenizer, settings, path, where)
    return tokenizer


def _check_flags(
    tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any], path: Path, where: str
) -> None:
    """Refuse a tokenizer that does not encode a text as the flags of its file say."""
    flags = {name.removeprefix("tokenizer.ggml."): value for name, value in settings.items()}
    for attribute, flag in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        found, wanted = getattr(tokenizer, f"{attribute}_token_id"), flags.get(f"{flag}_token_id")
        if wanted is not None and found != wanted:
            raise _no_tokenizer(
                path, where, f"has the token {wanted} for {attribute}, which is read as {found}"
            )
    llama = flags.get("model") == "llama"
    ids, bare = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    begins, space = (
        ids[:1] == [flags.get("bos_token_id")],
        "▁" in tokenizer.convert_ids_to_tokens(bare)[0],
    )
    for flag, found in (("add_bos_token", begins), ("add_space_prefix", space)):
        if flag in flags and found != flags[flag] and (llama or flag == "add_bos_token"):
            raise _no_tokenizer(
                path, where, f"says {flag}: {str(flags[flag]).lower()}, which is not read so"
            )
    if behind := special_behind(tokenizer):
        raise _no_tokenizer(
            path, where, f"puts {behind} behind every text, also between a question and its answer"
        )


def _no_tokenizer(path: Path, where: str, why: str) -> LaminaError:
    return LaminaError(
        f"{where}: {path} {why}, and other tokens give other numbers. Put the model's tokenizer.json and "
        "tokenizer_config.json beside the file."
    )


if __name__ == "__main__":
    with explained():
        dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
