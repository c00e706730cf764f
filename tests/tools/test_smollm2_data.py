"""Questions are cut into parts that share none, nor a near duplicate; a folder that lacks files is refused."""

import json
from pathlib import Path

import pytest
import smollm2_data

from lamina.data.overlap import document_hash, groups, runs
from lamina.errors import LaminaError


def test_near_duplicates_stay_in_one_part(tmp_path: Path) -> None:
    numbers = [" ".join(f"w{n}x{k}" for k in range(30)) for n in range(300)]
    asked = [{"query": text, "choices": ["a", "b"], "gold": 0} for text in numbers]
    asked += [{"query": text + " again", "choices": ["a", "b"], "gold": 0} for text in numbers]
    asked += [{"query": "same", "choices": ["a", "a "], "gold": 0}]
    for task in smollm2_data.TASKS:
        (tmp_path / f"{task}.jsonl").write_text("\n".join(map(json.dumps, asked)))
    with pytest.raises(LaminaError, match="wiki.valid.tokens.* not found"):
        smollm2_data.cut(tmp_path, tmp_path / "out")
    (tmp_path / "wikitext-2").mkdir()
    for name in smollm2_data.TEXTS.values():
        (tmp_path / "wikitext-2" / name).write_text(f" = Head = \n{numbers[0]} {numbers[1]}\n")
    counts = smollm2_data.cut(tmp_path, tmp_path / "out")
    assert [counts[f"piqa_{part}"] for part in ("calibration", "validation", "test")] == [400, 100, 100]
    assert counts["wikitext_test"] == 1
    found = {}
    for part in ("calibration", "validation", "test"):
        for line in (tmp_path / "out" / f"piqa_{part}.jsonl").read_text().splitlines():
            question = json.loads(line)
            found[question["query"]] = (part, (document_hash(question["query"]), runs(question["query"])))
    of = groups([key for _, key in found.values()])
    parts: dict[int, set[str]] = {}
    for group, (part, _) in zip(of, found.values(), strict=True):
        parts.setdefault(group, set()).add(part)
    assert len(parts) == 300 and all(len(each) == 1 for each in parts.values())
