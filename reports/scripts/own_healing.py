"""Whether a short training on the model's own answers mends a pruned model better than one on gold answers.

`PYTHONPATH=src python reports/scripts/own_healing.py reference sorting,facts FOLDER OUT.csv`, or `babyllama stories …`.
The layers go by iterative loss on gold answers to questions that nothing is trained on. All trainings take as many
steps, with the options of config/config.yaml; `ghost` is fitted on the answers that are trained on. FOLDER keeps what
each variant scores on each test document, and OUT.csv is written from all of it; intervals are paired by document,
with the mean of both seeds.
"""

import csv
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from own_answers import OWN, REAL, ROOT, TESTS, World, project, replaced
from scipy.stats import t as student
from transformers import PreTrainedModel

from lamina.data.calibrations import Sample
from lamina.data.lm_tasks import task_object
from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source as Fitted
from lamina.evaluation.perplexity import Window, document_nll
from lamina.evaluation.tasks import TaskBenchmark
from lamina.healing import lora
from lamina.healing.batches import TrainingSource
from lamina.models.materialise import materialise
from lamina.models.surgery import find_runs
from lamina.options.calibrations import Calibration as Entry
from lamina.options.healings import Healing
from lamina.options.repairs import Repair
from lamina.selection.looped import fit_patches

CHOOSING, PROMPT, GENERAL, WEIGHT, STEPS, SEEDS = 250, 16, 200, 0.1, 60, (0, 1)
HEALING = {
    "method": "lora",
    "rank": 8,
    "alpha": 16,
    "learning_rate": 0.002,
    "batch": 16,
    "warmup_steps": 8,
}
WAYS = {"gold": {}, **{way: OWN[way] for way in ("greedy", "greedy, right", "drawn")}}
SIZES = {"reference": 3, "babyllama": 1}  # layers that are removed
MEASURES = {"accuracy": ("right",), "loss": ("gold",), "other_loss": ("other",)}
HEAD = "world task removed units repair answers seed n_trained accuracy loss other_loss"
HEAD += "".join(f" {measure}_{part}" for measure in MEASURES for part in ("gain", "low", "high"))


def texts(name: str) -> tuple[list[str], list[str]]:
    """Texts to choose and to train on, and others to test on."""
    if name == "stories":
        found = json.loads((REAL / "data/tinystories_1000.json").read_text())
        return found[:500], found[500 : 500 + TESTS]
    files = (
        ROOT / f"resources/reference/data/corpus_{split}.jsonl" for split in ("validation", "test")
    )
    pool, test = (
        [json.loads(line)["text"] for line in file.read_text().splitlines()] for file in files
    )
    return pool, test[:TESTS]


class Trial:
    """The samples of a task, and what scores a variant on its test documents."""

    def __init__(self, world: World, task: str) -> None:
        self.world, self.text = world, task in ("stories", "corpus")
        name = task if self.text else "corpus"
        pool, test = texts(name)
        (world.root / f"{name}.json").write_text(json.dumps(pool if self.text else pool[:GENERAL]))
        (world.root / f"{name}_test.json").write_text(json.dumps(test))
        entry: dict[str, Any]
        if self.text:
            entry, held = self.written(task), self.written(f"{task}_test")
            own = world.calibration(held | OWN["greedy"]).samples
            gold, self.general = world.calibration(held).samples, ()
            gold = [replaced(one, one.sequence()[:PROMPT], one.sequence()[PROMPT:]) for one in gold]
            self.judges = {"gold": gold, "other": own}
        else:
            entry = {"task": f"microworld_{task}", "split": "validation", "limit": None}
            held = Entry.from_options(entry).model_copy(update={"split": "test"})
            tests = prepare_calibration("test", held, world.manifest, world.root).samples[:TESTS]
            self.general = world.calibration(self.written("corpus")).samples
            self.judges = {
                "gold": tests,
                "other": world.calibration(self.written("corpus_test")).samples[:100],
            }
            self.bench = TaskBenchmark(
                task_object(entry["task"], world.root, 0), world.model, world.tokenizer, TESTS
            )
        ways = {way: keys for way, keys in WAYS.items() if not (self.text and "keep" in keys)}
        made = {way: world.calibration(entry | keys).samples for way, keys in ways.items()}
        # Some tasks ask a question several times, with other wrong choices.
        questions = Counter(sample.document for sample in made["gold"])
        before = dict(zip(questions, np.cumsum([0, *questions.values()]), strict=False))
        apart = {question for question, count in before.items() if count < CHOOSING}
        self.chosen_on = [sample for sample in made["gold"] if sample.document in apart]
        self.samples = {
            way: [one for one in some if one.document not in apart] for way, some in made.items()
        }

    def twin(self, key: str) -> str:
        """The key of the first variant that is trained on the very same tokens."""
        size, repair, way, seed = key.split(";")
        name, comma, rest = way.partition(", not healed")
        told = {
            each: [(one.rows[0].context, one.rows[0].continuation) for one in own]
            for each, own in self.samples.items()
        }
        same = [each for each, own in told.items() if own == told.get(name)]
        return ";".join((size, repair, "".join((*same[:1], comma, rest)), seed))

    def written(self, name: str) -> dict[str, Any]:
        return {"text": str(self.world.root / f"{name}.json"), "documents": None, "length": 128}

    def scored(self, model: PreTrainedModel) -> dict[str, Any]:
        """Of each test document: whether its answer is right; the loss of gold answers and of text, with the tokens."""
        found: dict[str, Any] = {}
        for name, samples in self.judges.items():
            rows = [(sample.sequence(), max(1, len(sample.rows[0].context))) for sample in samples]
            windows = [
                Window(ids, first, number)
                for number, (ids, first) in enumerate(rows)
                if len(ids) > first
            ]
            found[name] = [
                pair for pair in document_nll(model, windows, len(rows), "a variant") if pair[1]
            ]
        if not self.text:
            scores = self.bench.score(model, "a variant").samples
            found["right"] = [
                [row["value"], 1] for row in scores if row["metric"].startswith("exact_match")
            ]
        return found

    def plan(self, size: int) -> list[str]:
        """Layers in the order of their removal: each time the one without which the loss is lowest."""
        gone: list[str] = []
        with sweep.open_session(self.world.model, self.chosen_on, 16384, False) as session:
            while len(gone) < size:
                layers = [
                    str(layer)
                    for layer in range(sweep.layer_count(self.world.model))
                    if str(layer) not in gone
                ]
                named = {each: Candidate(frozenset([*gone, each])) for each in layers}
                session.measure(
                    range(len(self.chosen_on)), {(*gone, each): one for each, one in named.items()}
                )
                total = {}
                for each in layers:
                    seen = [
                        session.scores.sample((*gone, each), number)
                        for number in range(len(self.chosen_on))
                    ]
                    total[each] = sum(one["nll"] for one in seen)
                gone.append(min(total, key=lambda each: total[each]))
        return gone

    def ghost(self, gone: Sequence[str], own: Sequence[Sample]) -> dict[Any, Any]:
        sources = [Fitted([sample.sequence() for sample in own], 1.0)]
        if self.general:
            sources.append(Fitted([sample.sequence() for sample in self.general], WEIGHT))
        where, options = (
            find_runs(gone, sweep.layer_count(self.world.model)),
            Repair.from_options({"method": "ghost"}),
        )
        return dict(fit_patches(self.world.model, sources, where, options, 0, torch.device("cpu")))

    def made(
        self, gone: Sequence[str], repair: str, own: Sequence[Sample], seed: int | None = None
    ) -> PreTrainedModel:
        """The variant, trained if there is a seed."""
        plan = {"units": sorted(gone, key=int)}
        maps = self.ghost(gone, own) if repair == "ghost" else None
        if seed is None:
            return materialise(self.world.model, plan, maps)
        options = Healing.from_options(
            HEALING | {"epochs": STEPS, "max_steps": STEPS, "seed": seed}
        )
        sources = [TrainingSource(own)] + (
            [TrainingSource(self.general, WEIGHT)] if self.general else []
        )
        trained, _ = lora.heal(self.world.model, plan, maps, sources, options)
        with tempfile.TemporaryDirectory() as folder:
            lora.save(trained, folder)
            return materialise(self.world.model, plan, maps, folder)

    def variants(self, gone: Sequence[str]) -> Iterator[tuple[str, Callable[[], PreTrainedModel]]]:
        """(removed, repair, answers, seed) of each variant as a text, and what makes it."""
        yield "0;none;unpruned;", lambda: self.world.model
        yield f"{len(gone)};none;none;", partial(self.made, gone, "none", ())
        for seed, repair, (way, own) in product(SEEDS, ("none", "ghost"), self.samples.items()):
            if repair == "ghost" and seed == SEEDS[0]:
                yield (
                    f"{len(gone)};{repair};{way}, not healed;",
                    partial(self.made, gone, repair, own),
                )
            yield f"{len(gone)};{repair};{way};{seed}", partial(self.made, gone, repair, own, seed)


def gained(mine: np.ndarray, gold: np.ndarray, questions: Sequence[int]) -> list[float]:
    """The difference of Σ value / Σ weight, and 95 % around it, from rows (documents, 2) and their questions."""
    sums = np.zeros((1 + max(questions), 2))
    np.add.at(sums, list(questions), np.stack([mine[:, 0] - gold[:, 0], gold[:, 1]], axis=1))
    change, weight = sums[sums[:, 1] > 0].T
    mean, count = change.sum() / weight.sum(), len(weight)
    error = (
        1.96 * np.sqrt(((change - mean * weight) ** 2).sum() * count / (count - 1)) / weight.sum()
    )
    return [mean, mean - error, mean + error]


def table(states: Mapping[tuple[str, str], Any]) -> list[list[Any]]:
    """The rows of OUT.csv: each variant, and the mean of its seeds against the training on gold answers."""
    rows = []
    for (world, task), state in states.items():
        seen = {tuple(key.split(";")): value for key, value in state["scores"].items()}
        for (size, repair, way, seed), value in list(seen.items()):
            both = [seen.get((size, repair, way, str(each))) for each in SEEDS]
            if seed == str(SEEDS[-1]) and all(both):
                seen[size, repair, way, "mean"] = {
                    key: np.mean([np.array(each[key], float) for each in both], axis=0)
                    for key in value
                }
        for (size, repair, way, seed), value in seen.items():
            gone = state["units"][: int(size)]
            count = state["n_trained"].get(way.removesuffix(", not healed"), "")
            row = [world, task, size, " ".join(gone), repair, way, seed, count]
            gains = []
            for (name,) in MEASURES.values():
                mine = np.array(value.get(name, []), float)
                row.append(f"{mine[:, 0].sum() / mine[:, 1].sum():.4f}" if len(mine) else "")
                gold = seen.get(
                    (size, repair, "gold, not healed" if "not healed" in way else "gold", seed)
                )
                if gold is None or gold is value or not len(mine):
                    gains += [""] * 3
                else:
                    asked = name != "other" and state.get("questions") or range(len(mine))
                    gains += [
                        f"{each:.4f}" for each in gained(mine, np.array(gold[name], float), asked)
                    ]
            rows.append(row + gains)
    return rows


def summary(rows: Sequence[Sequence[Any]]) -> None:
    """Means over the tasks with exact match, with t over tasks."""
    named = [dict(zip(HEAD.split(), row, strict=True)) for row in rows]
    kinds = dict.fromkeys(
        (one["repair"], one["answers"]) for one in named if one["seed"] in ("", "mean")
    )
    for repair, way in kinds:
        mine = [
            one
            for one in named
            if (one["repair"], one["answers"]) == (repair, way) and one["seed"] in ("", "mean")
        ]
        mine, cells = [one for one in mine if one["accuracy"]], []
        for measure in MEASURES:
            values = [float(one[measure]) for one in mine]
            gains = [float(one[f"{measure}_gain"]) for one in mine if one[f"{measure}_gain"]]
            cells.append(f"{np.mean(values):.3f}")
            if len(gains) > 1:
                error = (
                    student.ppf(0.975, len(gains) - 1) * np.std(gains, ddof=1) / len(gains) ** 0.5
                )
                cells[-1] += f" ({np.mean(gains):+.3f} ± {error:.3f})"
        print(f"| {repair} | {way} | {' | '.join(cells)} | {len(mine)} |")


def main(world: str, tasks: list[str], folder: Path, out: Path) -> None:
    """Measure what FOLDER does not hold yet, and write OUT.csv of all that it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        root = project(Path(place))
        os.chdir(root)
        found = World(world, root)
        for task in tasks:
            file, trial = folder / f"{world}-{task}.json", Trial(found, task)
            counts = {way: len(own) for way, own in trial.samples.items()}
            state = (
                json.loads(file.read_text())
                if file.is_file()
                else {"scores": {}, "n_trained": counts}
            )
            if "units" not in state:
                state["units"] = trial.plan(SIZES[world])
            asked = [sample.document for sample in trial.judges["gold"]]
            state["questions"] = None if trial.text else [asked.index(each) for each in asked]
            for key, make in trial.variants(state["units"][: SIZES[world]]):
                if key not in state["scores"]:
                    state["scores"][key] = state["scores"].get(trial.twin(key)) or trial.scored(
                        make()
                    )
                    file.write_text(json.dumps(state))
                    print(world, task, key, round(time.process_time()), flush=True)
    states = {
        tuple(file.stem.split("-")): json.loads(file.read_text())
        for file in sorted(folder.glob("*.json"))
    }
    rows = table(states)
    with out.open("w", newline="") as file:
        csv.writer(file).writerows([HEAD.split(), *rows])
    summary(rows)


if __name__ == "__main__":
    world, tasks, folder, out = sys.argv[1:]
    main(
        world,
        [task for task in tasks.split(",") if task],
        Path(folder).resolve(),
        Path(out).resolve(),
    )
