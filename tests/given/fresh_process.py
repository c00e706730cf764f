"""Run by tests in an interpreter of its own: loads exports with torch and transformers alone.

Usage: fresh_process.py JOB.json RESULT.pt. The job lists the folders of exports, how to load them,
and the token ids to run on.
"""

import importlib.abc
import json
import sys
from pathlib import Path
from typing import Any


class LaminaBlocker(importlib.abc.MetaPathFinder):
    """Makes `import lamina` fail, installed or not."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.split(".")[0].startswith("lamina"):
            raise ModuleNotFoundError("No module named 'lamina'", name="lamina")


sys.meta_path.insert(0, LaminaBlocker())

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def refusal(load: Any, folder: str, **options: Any) -> str:
    """The message with which a load fails; empty if it does not."""
    try:
        load(folder, **options)
    except Exception as error:  # noqa: BLE001, RUF100 - the test looks at what is raised
        return f"{type(error).__name__}: {error}"
    return ""


def load_export(folder: str, trust_remote_code: bool) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", trust_remote_code=trust_remote_code
    )
    return model.eval()


def load_config(folder: str, trust_remote_code: bool) -> dict[str, Any]:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return dict(config.to_dict())


@torch.no_grad()
def inspect_export(entry: dict[str, Any], token_ids: torch.Tensor) -> dict[str, Any]:
    """What the tests compare of one export and of its copy by `save_pretrained`."""
    folder = entry["folder"]
    has_code = entry["form"] == "code"
    model = load_export(folder, has_code)
    resaved_folder = f"{folder}-again"
    model.save_pretrained(resaved_folder)
    resaved_model = load_export(resaved_folder, has_code)

    findings = {
        "logits": model(input_ids=token_ids, use_cache=False).logits,
        "dtype": model.dtype,
        "config": load_config(folder, has_code),
        "resaved config": load_config(resaved_folder, has_code),
        "resaved logits": resaved_model(input_ids=token_ids, use_cache=False).logits,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
    }
    if entry["generate"]:
        findings["tokens"] = model.generate(
            token_ids[:1],
            attention_mask=torch.ones_like(token_ids[:1]),
            max_new_tokens=32,
            min_new_tokens=32,
            do_sample=False,
        )
    if has_code:
        stock_class = getattr(transformers, entry["class"])
        load_auto = AutoModelForCausalLM.from_pretrained
        findings["without trust"] = refusal(load_auto, folder, trust_remote_code=False)
        findings["by default"] = refusal(load_auto, folder)
        findings["by the stock class"] = refusal(stock_class.from_pretrained, folder)
    return findings


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    token_ids = torch.tensor(job["ids"])
    findings: dict[str, Any] = {}
    for entry in job["exports"]:
        findings[entry["name"]] = inspect_export(entry, token_ids)
    if job["tokenizers"]:
        tokenizers = [
            AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            for folder in job["tokenizers"]
        ]
        findings["tokenizers"] = [tokenizer("w1 w2 w59")["input_ids"] for tokenizer in tokenizers]
    findings["lamina"] = refusal(__import__, "lamina")
    torch.save(findings, sys.argv[2])


main()
