"""Run by tests in an interpreter of its own: loads exported folders with torch and transformers alone.

Usage: fresh_process.py JOB.json RESULT.pt. The job lists folders, how to load them, and the token ids to run on.
"""

import importlib.abc
import json
import sys
from pathlib import Path
from typing import Any


class NoLamina(importlib.abc.MetaPathFinder):
    """Makes `import lamina` fail, installed or not."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.split(".")[0].startswith("lamina"):
            raise ModuleNotFoundError("No module named 'lamina'", name="lamina")


sys.meta_path.insert(0, NoLamina())

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def refusal(load: Any, folder: str, **options: Any) -> str:
    """The message with which a load fails; empty if it does not."""
    try:
        load(folder, **options)
    except Exception as error:  # noqa: BLE001, RUF100 - what is raised is what the test looks at
        return f"{type(error).__name__}: {error}"
    return ""


def reload(folder: str, trust: bool) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", trust_remote_code=trust
    ).eval()


@torch.no_grad()
def look_at(entry: dict[str, Any], ids: torch.Tensor) -> dict[str, Any]:
    """Everything that a test wants to know of one export."""
    folder, trust = entry["folder"], entry["form"] == "code"
    model = reload(folder, trust)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    again = f"{folder}-again"
    model.save_pretrained(again)
    found = {
        "logits": model(input_ids=ids, use_cache=False).logits,
        "dtype": model.dtype,
        "config": config.to_dict(),
        "again": AutoConfig.from_pretrained(again, trust_remote_code=trust).to_dict(),
        "resaved": reload(again, trust)(input_ids=ids, use_cache=False).logits,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
    }
    if entry["generate"]:
        found["tokens"] = model.generate(
            ids[:1],
            attention_mask=torch.ones_like(ids[:1]),
            max_new_tokens=32,
            min_new_tokens=32,
            do_sample=False,
        )
    if trust:
        found["plain"] = refusal(
            AutoModelForCausalLM.from_pretrained, folder, trust_remote_code=False
        )
        found["asked"] = refusal(AutoModelForCausalLM.from_pretrained, folder)
        found["stock class"] = refusal(
            getattr(transformers, entry["class"]).from_pretrained, folder
        )
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    ids = torch.tensor(job["ids"])
    found: dict[str, Any] = {entry["name"]: look_at(entry, ids) for entry in job["exports"]}
    if job["tokenizers"]:
        found["tokenizers"] = [
            AutoTokenizer.from_pretrained(folder, trust_remote_code=False)("w1 w2 w59")["input_ids"]
            for folder in job["tokenizers"]
        ]
    found["lamina"] = refusal(__import__, "lamina")
    torch.save(found, sys.argv[2])


main()
