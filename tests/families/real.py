"""The rows of real models in docs/families.md: `python -m tests.families.real TEXTS FOLDER …` tries each of them.

TEXTS is a JSON list of strings. The trials are those of `tests.families.table`, on these texts.
"""

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tests.families import table, trials

_BEGIN, _END = "<!-- real models: begin -->\n", "<!-- real models: end -->\n"


def tried(folder: Path, texts: list[str]) -> str:
    """The row of one model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    trials.text = lambda length, seed: tuple(ids[40 * seed :][:length])
    outcomes = {}
    for trial in trials.TRIALS:
        for dtype in (torch.float32, torch.float64):
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
            with tempfile.TemporaryDirectory() as place:
                outcomes[trial] = trials.outcome(trial, model, Path(place))
            # Through thirty layers, rounding in float32 may be more than trials of tiny models allow for.
            if not outcomes[trial].startswith("WRONG"):
                break
    name = folder.parent.name if folder.name == "checkpoint" else folder.name
    return table.row(f"{name} ({model.config.num_hidden_layers} × {model.config.hidden_size})", outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(60)
    texts = json.loads(told.texts.read_text(encoding="utf-8"))[:40]
    rows = []
    for folder in told.folders:
        rows.append(tried(folder, texts))
        print(rows[-1], end="", flush=True)
    before, _, rest = table.PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    head = table.HEAD.replace("`model_type`", "model (layers × channels)")
    table.PAGE.write_text(before + _BEGIN + head + "".join(rows) + _END + rest.partition(_END)[2], "utf-8")


if __name__ == "__main__":
    main()
