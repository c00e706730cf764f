"""A small configuration with one of everything, and the files that it names."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT

RawConfig = dict[str, Any]


def minimal_config() -> RawConfig:
    """A small configuration with one of everything; `write_model_and_data` writes what it names."""
    text = (ROOT / "tests/configs/minimal.yaml").read_text(encoding="utf-8")
    raw_config: RawConfig = yaml.safe_load(text)
    return raw_config


def write_model_and_data(folder: Path) -> Path:
    """`folder`, with a model of 8 layers and two files of questions."""
    write_model_folder(folder / "small", {"num_hidden_layers": 8})
    for name in ("mine.jsonl", "mine_test.jsonl"):
        (folder / name).write_text('{"query": "a", "choices": ["b", "c"], "gold": 0}\n')
    return folder


def write_model_folder(folder: Path, model_config: RawConfig) -> Path:
    """A model's folder with its config.json and with empty files of weights and tokenizer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(model_config))
    header = b"{}"
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def set_key(raw_config: RawConfig, dotted_key: str, value: Any) -> RawConfig:
    """The configuration itself, with one key, such as `studies.prune.removed`, replaced."""
    *section_names, key = dotted_key.split(".")
    section = raw_config
    for section_name in section_names:
        section = section.setdefault(section_name, {})
    section[key] = value
    return raw_config
