"""Regret of strategy `portfolio` against its members in hindsight, on test documents.

`PYTHONPATH=src python reports/scripts/portfolio_regret.py reference addition,facts 100,400 0,1 OUT.csv`: one of WORLDS,
tasks, documents of a calibration, draws. Members choose by all documents of the calibration, the portfolio by its own
two parts. What OUT.csv holds is not measured again. For `smollm2`, `make smollm2 DATA=FOLDER` first.
"""

import csv
import json
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from lamina.data.calibrations import CalibrationSamples, Sample
from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.options.calibrations import Calibration as Entry
from lamina.options.selectors import Selector
from lamina.selection import judging
from lamina.selection.sets import SearchRequest

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared/real"
TOKENS = 16384


class World(NamedTuple):
    """A model, the sizes of its sets, and where the documents of a task are."""

    folder: Path
    sizes: list[int]
    pool: int
    tests: int
    dtype: str = "float32"


WORLDS = {
    "reference": World(ROOT / "resources/reference", [1, 2, 3], 500, 600),
    "smollm2": World(ROOT / "models/smollm2/checkpoint", [3, 5, 7], 1400, 500, "bfloat16"),
    "babyllama": World(REAL / "models/babyllama-tok105-llama", [1, 2], 500, 300),
    "tiny1m": World(REAL / "models/tiny1m-llama", [1, 2], 500, 300),
}
HEAD = "task documents draw removed way units member judged_loss corrected_loss accuracy loss base_accuracy base_loss"


def documents(world: str, task: str) -> tuple[CalibrationSamples, CalibrationSamples]:
    """The pool that calibrations are drawn from, and the test documents."""
    of = WORLDS[world]
    manifest = described(of)
    if world == "reference":
        entry = Entry.from_options(
            {"task": f"microworld_{task}", "split": "validation", "limit": of.pool}
        )
        # The test split judges here, and a configuration would refuse it as a calibration.
        test = entry.model_copy(update={"split": "test", "limit": of.tests})
    elif world == "smollm2":
        lines = [
            line
            for part in ("calibration", "validation", "test")
            for line in (ROOT / f"models/smollm2/data/{task}_{part}.jsonl").read_text().splitlines()
        ]
        pool = min(of.pool, len(lines) - 838)
        entry, test = (
            Entry.from_options({"choices": written(f"{task}_{name}.jsonl", some)})
            for name, some in (("pool", lines[:pool]), ("test", lines[pool : pool + of.tests]))
        )
    else:
        texts = json.loads((REAL / "data/tinystories_1000.json").read_text())
        lines = [json.dumps({"text": text}) for text in texts]
        entry, test = (
            Entry.from_options(
                {"text": written(f"{name}.jsonl", some), "documents": None, "length": 128}
            )
            for name, some in (
                ("pool", lines[: of.pool]),
                ("test", lines[of.pool : of.pool + of.tests]),
            )
        )
    return prepare_calibration(task, entry, manifest, ROOT), prepare_calibration(
        task, test, manifest, ROOT
    )


def described(of: World) -> dict[str, Any]:
    """What `prepare` reads of a manifest."""
    plain = {
        "trust_remote_code": False,
        "chat_template": False,
        "fewshot_as_turns": None,
        "system_prompt": None,
    }
    vocabulary = json.loads((of.folder / "config.json").read_text())["vocab_size"]
    named = {
        "path": str(of.folder),
        "source": str(of.folder),
        "template_arguments": {},
        "vocabulary": vocabulary,
    }
    return plain | named


def written(name: str, lines: Iterable[str]) -> str:
    """A file of these lines, out of the checkout."""
    file = Path(sys.argv[-1]).resolve().with_suffix("") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


class Judge:
    """Accuracy and loss of sets on the test documents, remembered in a file."""

    def __init__(
        self, model: PreTrainedModel, samples: tuple[Sample, ...], text: bool, file: Path
    ) -> None:
        self._model, self._samples, self._text, self._file = model, samples, text, file
        self._found = json.loads(file.read_text()) if file.is_file() else {}

    def __call__(self, sets: Iterable[frozenset[str]]) -> dict[frozenset[str], list[float]]:
        sets = list(sets)
        wanted = [
            Candidate(units) for units in dict.fromkeys(sets) if spelled(units) not in self._found
        ]
        if wanted:
            with sweep.open_session(self._model, self._samples, TOKENS, False) as session:
                numbers = range(len(self._samples))
                session.measure(numbers, {candidate.removed: candidate for candidate in wanted})
                for candidate in wanted:
                    seen = [session.scores.sample(candidate.removed, number) for number in numbers]
                    right = [sample.get("correct_norm", sample["correct"]) for sample in seen]
                    # Nats of an answer, nats per token of text.
                    loss = [
                        sample["nll"] / (sample["n_tokens"] if self._text else 1) for sample in seen
                    ]
                    self._found[spelled(candidate.removed)] = [
                        float(np.mean(right)),
                        float(np.mean(loss)),
                    ]
            self._file.write_text(json.dumps(self._found))
        return {units: self._found[spelled(units)] for units in sets}


def spelled(units: Iterable[str]) -> str:
    return " ".join(sorted(units, key=int))


def main(world: str, tasks: list[str], counts: list[int], draws: list[int], out: Path) -> None:
    """Write one row per task, calibration, size and way to choose."""
    of, rows = WORLDS[world], []
    if out.is_file():
        rows = list(csv.reader(out.read_text().splitlines()))[1:]
    model = load_folder(str(of.folder), of.dtype, False)
    known = {(task, int(count), int(draw)) for task, count, draw, *_ in rows}
    drawn = {task: documents(world, task) for task in tasks}
    for count, draw, task in product(counts, draws, tasks):
        if (task, count, draw) in known:
            continue
        pool, test = drawn[task]
        judge = Judge(
            model, test.samples, task == "stories", out.with_name(f"{out.stem}-{task}.json")
        )
        numbers = sorted(
            np.random.default_rng([draw, count]).permutation(len(pool.samples))[:count]
        )
        own = CalibrationSamples(tuple(pool.samples[number] for number in numbers), pool.facts)
        keys = {"model": world, "calibration": task, "selector": "portfolio"}
        options = Selector.from_options({"strategy": "portfolio", "seed": draw})
        request = SearchRequest(model, {task: own}, options, of.sizes, keys, tokens=TOKENS)
        whole, _ = judging.propose_sets(request, own)
        found = [
            (size, way, gone, "none", "", "")
            for size, sets in whole.items()
            for way, gone in sets.items()
        ]
        plans, _ = judging.search_plans(request)
        for plan in plans:
            told = (plan.choice["member"], plan.choice["loss"], plan.choice["corrected_loss"])
            found.append((plan.removed, "half", frozenset(plan.units), *told))
        judged = judge([frozenset(), *(row[2] for row in found)])
        for size, way, gone, *told in found:
            rows.append(
                [
                    task,
                    count,
                    draw,
                    size,
                    way,
                    spelled(gone),
                    *told,
                    *judged[gone],
                    *judged[frozenset()],
                ]
            )
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    world, tasks, counts, draws, out = sys.argv[1:]
    main(
        world,
        tasks.split(","),
        *([int(number) for number in text.split(",")] for text in (counts, draws)),
        Path(out),
    )
