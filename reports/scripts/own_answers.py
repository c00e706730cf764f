"""Whether the model's own answers rank removals better than those of the data: exact match, and text.

`PYTHONPATH=src python reports/scripts/own_answers.py reference sorting,facts OUT.csv`, or `babyllama stories OUT.csv`.
Scores of sets of one and of two layers on 200 calibration documents, against what these sets really cost on others.
Tasks with choices are asked as tasks whose answer is written. What OUT.csv holds is not measured again. Intervals
resample the documents of both sides (2,000 draws), shifted by the bias of the draws.
"""

import csv
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import rankdata
from transformers import PreTrainedModel

from lamina.data import calibrations
from lamina.data.calibrations import CalibrationSamples
from lamina.data.lm_tasks import task_object
from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.evaluation.generation import answer_calibration
from lamina.evaluation.tasks import TaskBenchmark
from lamina.models.load import load_folder, load_tokenizer
from lamina.models.materialise import materialise
from lamina.options.calibrations import Calibration as Entry

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared/real"
FOLDERS = {
    "reference": ROOT / "resources/reference",
    "babyllama": REAL / "models/babyllama-tok105-llama",
}
DOCUMENTS, TESTS, PAIRS, DRAWS = 200, 300, 12, 2000
OWN = {  # ways to answer
    "greedy": {"answers": "model"},
    "greedy, right": {"answers": "model", "keep": "right"},
    "drawn": {"answers": "model", "temperature": 1.0},
    "drawn, right": {"answers": "model", "temperature": 1.0, "keep": "right"},
}
HEAD = "world task sets answers score truth n_sets n_documents n_right base spearman low high gain gain_low gain_high"


def stories() -> tuple[list[str], list[str]]:
    """Texts to calibrate on, and others to test on."""
    texts = json.loads((REAL / "data/tinystories_1000.json").read_text())
    return texts[:DOCUMENTS], texts[500 : 500 + TESTS]


def corpus() -> tuple[list[str], list[str]]:
    """As `stories`, of the embedded corpus."""
    files = (
        ROOT / f"resources/reference/data/corpus_{split}.jsonl" for split in ("validation", "test")
    )
    pool, test = (
        [json.loads(line)["text"] for line in file.read_text().splitlines()] for file in files
    )
    return pool[:DOCUMENTS], test[:TESTS]


TEXTS = {"stories": stories, "corpus": corpus}


def described(world: str) -> dict[str, Any]:
    folder = str(FOLDERS[world])
    manifest = {
        "path": folder,
        "source": folder,
        "trust_remote_code": False,
        "chat_template": False,
    }
    manifest |= {"fewshot_as_turns": None, "system_prompt": None, "template_arguments": {}}
    return manifest | {
        "vocabulary": json.loads((FOLDERS[world] / "config.json").read_text())["vocab_size"]
    }


def project(folder: Path) -> Path:
    """A root with the embedded tasks, those with choices as tasks whose answer is written."""
    (folder / "resources").symlink_to(ROOT / "resources")
    (folder / "workflow/tasks").mkdir(parents=True)
    for file in (ROOT / "workflow/tasks").glob("*.yaml"):
        keys = yaml.safe_load(file.read_text())
        if keys["output_type"] == "multiple_choice":
            del keys["doc_to_choice"]
            keys |= {"output_type": "generate_until", "doc_to_target": "{{choices[gold]}}"}
            # After an answer, the model ends, or begins the next question as documents of `recall` do.
            stop = " ?" if "recall" in file.stem else "\n"
            keys["generation_kwargs"] = {"until": [stop], "do_sample": False, "max_gen_toks": 16}
            keys["metric_list"] = [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
            ]
        (folder / "workflow/tasks" / file.name).write_text(yaml.safe_dump(keys))
    return folder


class World:
    """A model with its calibrations and the sets of layers that are removed from it."""

    def __init__(self, name: str, root: Path) -> None:
        self.manifest, self.root = described(name), root
        self.model = load_folder(self.manifest["path"], "float32", False)
        self.tokenizer = load_tokenizer(self.manifest)
        layers = range(sweep.layer_count(self.model))
        pairs = list(combinations(layers, 2))
        self.sets = [frozenset({str(layer)}) for layer in layers] + [
            frozenset(map(str, pair))
            for pair in random.Random(0).sample(pairs, min(PAIRS, len(pairs)))
        ]

    def calibration(self, options: Mapping[str, Any]) -> CalibrationSamples:
        """The calibration of an entry, as the workflow makes it."""
        entry, file = Entry.from_options(options), self.root / "written.parquet"
        made = prepare_calibration("own", entry, self.manifest, self.root)
        if not entry.own:
            return made
        answered = answer_calibration("own", entry, made, self.model, self.manifest, self.root)
        calibrations.write_calibration(file, answered)
        return prepare_calibration(
            "own", entry, self.manifest, self.root, written={"own": str(file)}
        )

    def measured(self, calibration: CalibrationSamples, after: int = 0) -> dict[str, np.ndarray]:
        """Rise of the loss (nats per token of text, else of an answer) and loss of accuracy: (sets, documents).

        after: for texts of the data, the tokens at the beginning that are not scored.
        """
        samples = calibration.samples
        if after:
            rows = [(sample, sample.sequence()) for sample in samples]
            samples = tuple(
                replaced(sample, ids[:after], ids[after:])
                for sample, ids in rows
                if len(ids) > after
            )
        named = {CURRENT: Candidate(frozenset())} | {each: Candidate(each) for each in self.sets}
        found = {"loss": [], "accuracy": []}
        with sweep.open_session(self.model, samples, 16384, False) as session:
            numbers = range(len(samples))
            session.measure(numbers, named)
            for each in named:
                seen = [session.scores.sample(each, number) for number in numbers]
                text = samples[0].kind == "text"
                found["loss"].append(
                    [one["nll"] / (one["n_tokens"] if text else 1) for one in seen]
                )
                found["accuracy"].append([-float(one["correct"]) for one in seen])
        both = {score: np.array(values) for score, values in found.items()}
        return {score: values[1:] - values[:1] for score, values in both.items()}


CURRENT = frozenset[str]()


def replaced(sample: Any, context: Sequence[int], continuation: Sequence[int]) -> Any:
    row = calibrations.Row(tuple(context), tuple(continuation), 0)
    return calibrations.Sample(
        sample.index, sample.kind, 0, (row,), sample.document, limit=sample.limit
    )


def exact_match(world: World, task: str) -> tuple[np.ndarray, float]:
    """What removals really cost: exact match of the unpruned model less that of cut ones, (sets, documents)."""
    found = task_object(task, world.root, 0)
    bench = TaskBenchmark(found, world.model, world.tokenizer, TESTS)

    def right(model: PreTrainedModel) -> list[float]:
        rows = bench.score(model, "a variant").samples
        return [row["value"] for row in rows if row["metric"].startswith("exact_match")]

    base = np.array(right(world.model))
    cut = [right(materialise(world.model, {"units": sorted(gone, key=int)})) for gone in world.sets]
    return base - np.array(cut), float(base.mean())


def resampled(values: np.ndarray, seed: int) -> np.ndarray:
    """Means over documents (sets, 1 + DRAWS): over all of them, then over draws of as many, the same for a seed."""
    count = values.shape[1]
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), DRAWS)
    return values @ np.vstack([np.ones(count), draws]).T / count


def spearman(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Correlation over the sets of each draw; 0 where all sets are alike."""
    a, b = (rankdata(each, axis=0) for each in (one, other))
    a, b = a - a.mean(0), b - b.mean(0)
    norm = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return (a * b).sum(0) / np.where(norm, norm, 1)


def interval(values: np.ndarray) -> list[str]:
    """The value of all documents, and 95 % of the draws, shifted by their bias; no correlation is beyond 1."""
    low, high = np.percentile(values[1:], [2.5, 97.5]) - (values[1:].mean() - values[0])
    return [f"{value:.3f}" for value in (values[0], low, min(1, high))]


def compared(world: World, task: str) -> list[list[Any]]:
    """Rows of a task: each way to answer and each score, for each truth."""
    truths, scores, facts = {}, {}, {}
    if task in TEXTS:
        for name, some in zip(("pool", "test"), TEXTS[task](), strict=True):
            (world.root / f"{name}.json").write_text(json.dumps(some))
        ways = {way: keys for way, keys in OWN.items() if "keep" not in keys}
        for name in ("pool", "test"):
            entry = {"text": str(world.root / f"{name}.json"), "documents": None, "length": 128}
            for way, keys in {"gold": {}, **ways}.items():
                made = world.calibration(entry | keys)
                found = world.measured(made, 16 if way == "gold" else 0)
                if name == "test":
                    truths[f"loss of {way} text"] = (found["loss"], "")
                else:
                    scores[way], facts[way] = found, (len(made.samples), "")
    else:
        entry = {"task": f"microworld_{task}", "split": "validation", "limit": DOCUMENTS}
        truths["exact match"] = exact_match(world, entry["task"])
        for way, keys in {"gold": {}, **OWN}.items():
            try:
                made = world.calibration(entry | keys)
            except calibrations.LaminaError as error:
                print(task, way, error)
                continue
            scores[way], facts[way] = (
                world.measured(made),
                (len(made.samples), made.facts.get("n_right", "")),
            )
    rows = []
    singles = sweep.layer_count(world.model)
    for sets, chosen in {
        "one": slice(0, singles),
        "two": slice(singles, None),
        "all": slice(None),
    }.items():
        for truth, (real, base) in truths.items():
            costs = resampled(real, 1)[chosen]
            for way, score in product(scores, ("loss",) if task in TEXTS else ("loss", "accuracy")):
                # Ways with the same documents are drawn alike, so that their difference is paired.
                own, gold = (
                    spearman(resampled(scores[each][score], 0)[chosen], costs)
                    for each in (way, "gold")
                )
                told = [sets, way, score, truth, len(costs), *facts[way], base]
                rows.append([*told, *interval(own), *interval(own - gold)])
    return rows


def main(world: str, tasks: list[str], out: Path) -> None:
    """Write the rows of tasks that `out` does not hold yet."""
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.is_file() else []
    with tempfile.TemporaryDirectory() as folder:
        root = project(Path(folder))
        os.chdir(root)
        found = World(world, root)
        for task in tasks:
            if [world, task] not in [row[:2] for row in rows]:
                rows += [[world, task, *row] for row in compared(found, task)]
                with out.open("w", newline="") as file:
                    csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3]).resolve())
