"""The open prompts: their files are those that the script writes."""

import json
import sys
from pathlib import Path

from tests import ROOT

sys.path.append(str(ROOT / "tools"))
import chat_prompts


def test_the_files_are_those_that_the_script_writes(tmp_path: Path) -> None:
    chat_prompts.write_prompts(tmp_path)

    for split in chat_prompts.SPLITS:
        name = f"prompts_{split}.jsonl"
        assert (tmp_path / name).read_text() == (ROOT / "resources/written" / name).read_text()


def test_no_prompt_is_asked_twice() -> None:
    prompts: list[str] = []
    for split in chat_prompts.SPLITS:
        lines = (ROOT / f"resources/written/prompts_{split}.jsonl").read_text().splitlines()
        prompts += [json.loads(line)["query"] for line in lines]

    assert len(set(prompts)) == len(prompts) == sum(chat_prompts.SPLITS.values())
