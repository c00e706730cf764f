"""Configurations to test with: one of everything, and places to put them."""

import json
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
Raw = dict[str, Any]


def minimal() -> Raw:
    """A small configuration with one of everything; `workplace` holds what it names."""
    raw: Raw = yaml.safe_load(
        (REPOSITORY / "tests/configs/minimal.yaml").read_text(encoding="utf-8")
    )
    return raw


def workplace(root: Path) -> Path:
    """`root`, with a model of 8 layers and two files of questions."""
    model_folder(root / "small", {"num_hidden_layers": 8})
    for name in ("mine.jsonl", "mine_test.jsonl"):
        (root / name).write_text('{"query": "a", "choices": ["b", "c"], "gold": 0}\n')
    return root


def model_folder(folder: Path, settings: Raw) -> Path:
    """A folder that holds a model's config.json, and files without content where weights and tokenizer stand."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def put(raw: Raw, where: str, value: Any) -> Raw:
    """`raw` with the value at a dotted place replaced."""
    *path, last = where.split(".")
    part = raw
    for key in path:
        part = part.setdefault(key, {})
    part[last] = value
    return raw
