"""What the sets of papers_protocol.py lose on questions that no choice saw, bare and repaired.

`PYTHONPATH=src python reports/scripts/judge_protocol.py TASK REPAIRED FOLDER`: `arc_easy` or `piqa`, the sizes that are
repaired too (such as `7`, or `0` for none), and the folder of papers_protocol.py. Sets of a portfolio are read from
reports/portfolio/smollm2.csv. It writes `FOLDER/judged-TASK.csv`, a row for each set and repair, with the right answers
as a hexadecimal number of one bit for each question; what is there is not measured again.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import torch
from papers_protocol import SIZES, questions
from portfolio_regret import ROOT, TOKENS, WORLDS, described, written

from lamina.config.calibrations import Calibration as Entry
from lamina.config.repairs import Repair
from lamina.config.selectors import Selector
from lamina.data.prepare import prepare
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.load import load_folder
from lamina.selection import judging, looped
from lamina.selection.sets import SearchRequest

HEAD = "task removed way questions draw repair units n accuracy loss text_loss right losses"
# Questions and texts that a patch is fitted on, and the share of a token of text.
FITTED, TEXTS, SHARE = 400, 200, 0.1


def texts(part: str, count: int):
    """Calibration of documents of WikiText-2 in windows of 128 tokens."""
    lines = [f"{line}\n" for line in (ROOT / f"models/smollm2/data/wikitext_{part}.jsonl").read_text().splitlines()]
    entry = Entry.from_options({"text": written(f"wikitext_{part}.jsonl", lines), "documents": None, "length": 128})
    samples = prepare("text", entry, described(WORLDS["smollm2"]), ROOT).samples
    order = np.random.default_rng(0).permutation(len(samples))[:count]
    return tuple(samples[number] for number in sorted(order))


def sets(task: str, folder: Path, model) -> list[tuple]:
    """(size, way, questions, draw, units) of everything that was chosen for a task."""
    found = [(0, "base", 0, 0, ())]
    for file in sorted(folder.glob(f"*-{task}-*.json")):
        way, _, count, draw = file.stem.split("-")
        steps = json.loads(file.read_text())["steps"]
        for size in SIZES:
            if way == "pairwise":
                gone = [unit for step in steps if step["size"] == size for unit in step["units"]]
            elif len(steps) >= size:
                gone = [unit for step in steps[:size] for unit in step["units"]]
            else:
                continue
            found.append((size, way, int(count), int(draw), tuple(gone)))
    # One pass over the streams of 400 questions gives the block and the clusters.
    own = questions(task, "pool", FITTED, 0)
    options = Selector.from_options({"strategy": "portfolio", "members": ["block", "clusters"]})
    keys = {"model": "smollm2", "calibration": task, "selector": "portfolio"}
    proposed, _ = judging.proposals(SearchRequest(model, {task: own}, options, SIZES, keys, tokens=TOKENS), own)
    for size, ways in proposed.items():
        found += [(size, way, FITTED, 0, tuple(sorted(gone, key=int))) for way, gone in ways.items()]
    with (ROOT / "reports/portfolio/smollm2.csv").open() as file:
        for row in csv.DictReader(file):
            if row["task"] == task and row["member"]:
                key = (int(row["removed"]), "portfolio", int(row["documents"]), int(row["draw"]))
                found.append((*key, tuple(row["units"].split())))
    return found


def patched(model, task: str, gone: tuple, general: bool) -> Candidate:
    """The candidate with a ghost patch where each run of layers was."""
    own = [sample.sequence() for sample in questions(task, "pool", FITTED, 0).samples]
    sources = [Source(own, 1.0)]
    if general:
        sources.append(Source([sample.sequence() for sample in texts("calibration", TEXTS)], SHARE))
    bare = Candidate(frozenset(gone))
    runs = looped.boundaries([bare], engine.layer_count(model))
    options = Repair.from_options({"method": "ghost"})
    return Candidate(bare.removed, dict(looped.patches(model, sources, runs, options, 0, torch.device("cpu"))))


def main(task: str, repaired: list[int], folder: Path) -> None:
    out = folder / f"judged-{task}.csv"
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.is_file() else []
    known = {tuple(row[1:7]) for row in rows}
    model = load_folder(str(WORLDS["smollm2"].folder), WORLDS["smollm2"].dtype, False)
    held, wiki = questions(task, "held").samples, texts("test", 100)
    judged = {(row[6], row[5]): row[7:] for row in rows}
    for size, way, count, draw, gone in sets(task, folder, model):
        for repair in ("none", "ghost", "ghost_general") if size in repaired and way != "halves" else ("none",):
            listed = " ".join(gone)
            key = (str(size), way, str(count), str(draw), repair, listed)
            if key in known:
                continue
            if (listed, repair) not in judged:
                candidate = Candidate(frozenset(gone))
                if repair != "none":
                    candidate = patched(model, task, gone, repair == "ghost_general")
                measured = []
                for samples in (held, wiki):
                    with engine.opened(model, samples, TOKENS, False) as session:
                        session.measure(range(len(samples)), {"it": candidate})
                        measured.append([session.scores.sample("it", number) for number in range(len(samples))])
                right = "".join(str(int(each["correct_norm"])) for each in measured[0])
                losses = [each["nll"] for each in measured[0]]
                text = sum(each["nll"] for each in measured[1]) / sum(each["n_tokens"] for each in measured[1])
                listed_losses = " ".join(f"{loss:.3g}" for loss in losses)
                numbers = [len(held), right.count("1") / len(held), np.mean(losses), text]
                judged[listed, repair] = [*map(str, numbers), f"{int('1' + right, 2):x}", listed_losses]
            rows.append([task, *key, *judged[listed, repair]])
            with out.open("w", newline="") as file:
                csv.writer(file).writerows([HEAD.split(), *rows])
            print(task, *key[:5], rows[-1][8:11], flush=True)


if __name__ == "__main__":
    task, repaired, folder = sys.argv[1:]
    main(task, [int(size) for size in repaired.split(",")], Path(folder).resolve())
