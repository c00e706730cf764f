"""What the sets of papers_protocol.py lose on questions that no choice saw, bare and repaired.

`PYTHONPATH=src python reports/scripts/judge_protocol.py TASK SIZES REPAIRS FOLDER`: `arc_easy`, `piqa`, sizes beside 7
such as `3,5`, `ghost,ghost_general` or `none` for the sets without 7 layers, and the folder of papers_protocol.py. Sets
of a portfolio are read from reports/portfolio/smollm2.csv. It writes `FOLDER/judged-TASK.csv`, a row for each set and
repair, with the right answers as a hexadecimal number of one bit for each question, behind a first 1. What is there is
not measured again.
"""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from papers_protocol import SIZES, questions
from portfolio_regret import ROOT, TOKENS, WORLDS, described, written

from lamina.data.prepare import prepare_calibration
from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.load import load_folder
from lamina.options.calibrations import Calibration as Entry
from lamina.options.repairs import Repair
from lamina.options.selectors import Selector
from lamina.selection import judging, looped
from lamina.selection.sets import SearchRequest

HEAD = "task removed way questions draw repair units n accuracy loss text_loss right losses"
# Questions and texts that a patch is fitted on, and the share of a token of text.
FITTED, TEXTS, SHARE = 400, 200, 0.1
REPAIRED = ("accuracy", "block", "halves", "pairwise", "perplexity")


def texts(part: str, count: int):
    """Calibration of documents of WikiText-2 in windows of 128 tokens."""
    lines = [
        f"{line}\n"
        for line in (ROOT / f"models/smollm2/data/wikitext_{part}.jsonl").read_text().splitlines()
    ]
    entry = Entry.from_options(
        {"text": written(f"wikitext_{part}.jsonl", lines), "documents": None, "length": 128}
    )
    samples = prepare_calibration("text", entry, described(WORLDS["smollm2"]), ROOT).samples
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
    proposed, _ = judging.propose_sets(
        SearchRequest(model, {task: own}, options, SIZES, keys, tokens=TOKENS), own
    )
    for size, ways in proposed.items():
        found += [
            (size, way, FITTED, 0, tuple(sorted(gone, key=int))) for way, gone in ways.items()
        ]
    with (ROOT / "reports/portfolio/smollm2.csv").open() as file:
        for row in csv.DictReader(file):
            # The portfolio, and accuracy from the same questions.
            way = {"half": "portfolio", "accuracy": "accuracy (one_shot)"}.get(row["way"])
            if row["task"] == task and way and (row["removed"] == "7" or row["documents"] == "400"):
                key = (int(row["removed"]), way, int(row["documents"]), int(row["draw"]))
                found.append((*key, tuple(row["units"].split())))
    return found


def patched(model, task: str, sets_of: list[tuple], general: bool) -> list[Candidate]:
    """The candidates with a ghost patch where each run of layers was, fitted in one pass."""
    own = [sample.sequence() for sample in questions(task, "pool", FITTED, 0).samples]
    sources = [Source(own, 1.0)]
    if general:
        sources.append(Source([sample.sequence() for sample in texts("calibration", TEXTS)], SHARE))
    bare, depth = [Candidate(frozenset(gone)) for gone in sets_of], sweep.layer_count(model)
    runs, options = (
        looped.candidate_boundaries(bare, depth),
        Repair.from_options({"method": "ghost"}),
    )
    found = dict(looped.fit_patches(model, sources, runs, options, 0, torch.device("cpu")))
    return [
        replace(
            each, patches={run: found[run] for run in looped.candidate_boundaries([each], depth)}
        )
        for each in bare
    ]


def judged(
    model, candidates: dict[tuple[str, str], Candidate], held, wiki
) -> dict[tuple[str, str], list[str]]:
    """What stands behind the key of each candidate's row. All of them share a pass."""
    found = {name: [] for name in candidates}
    for samples in filter(None, (held, wiki)):
        with sweep.open_session(model, samples, TOKENS, False) as session:
            session.measure(
                range(len(samples)), {str(name): each for name, each in candidates.items()}
            )
            for name, seen in found.items():
                seen.append(
                    [session.scores.sample(str(name), number) for number in range(len(samples))]
                )
    rows = {}
    for name, (answers, *rest) in found.items():
        texts_seen = rest[0] if rest else []
        right = "".join(str(int(each["correct_norm"])) for each in answers)
        losses = [each["nll"] for each in answers]
        tokens = sum(each["n_tokens"] for each in texts_seen)
        text = sum(each["nll"] for each in texts_seen) / tokens if tokens else float("nan")
        numbers = [len(answers), right.count("1") / len(right), np.mean(losses), text]
        rows[name] = [
            *map(str, numbers),
            f"{int('1' + right, 2):x}",
            " ".join(f"{loss:.3g}" for loss in losses),
        ]
    return rows


def main(task: str, sizes: list[int], repaired: list[str], folder: Path) -> None:
    out = folder / f"judged-{task}.csv"
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.is_file() else []
    known = {(row[6], row[5]): row[7:] for row in rows}
    model = load_folder(str(WORLDS["smollm2"].folder), WORLDS["smollm2"].dtype, False)
    held, wiki = questions(task, "held").samples, texts("test", 60)
    chosen = sets(task, folder, model)
    for size, repair in [
        (0, "none"),
        (7, "none"),
        *((7, repair) for repair in repaired),
        *((n, "none") for n in sizes),
    ]:
        mine = [
            one for one in chosen if one[0] == size and (repair == "none" or (one[1] in REPAIRED))
        ]
        new = {" ".join(one[4]): one[4] for one in mine if (" ".join(one[4]), repair) not in known}
        bare = [Candidate(frozenset(gone)) for gone in new.values()]
        made = (
            patched(model, task, list(new.values()), repair == "ghost_general")
            if repair != "none" and new
            else bare
        )
        candidates = {
            (listed, repair): candidate for listed, candidate in zip(new, made, strict=True)
        }
        known |= (
            judged(model, candidates, held, wiki if size in (0, 7) else ()) if candidates else {}
        )
        there = {tuple(row[1:7]) for row in rows}
        for _, way, count, draw, gone in mine:
            key = (str(size), way, str(count), str(draw), repair, " ".join(gone))
            if key not in there:
                rows.append([task, *key, *known[" ".join(gone), repair]])
                print(*rows[-1][:6], rows[-1][8:11], flush=True)
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    task, sizes, repaired, folder = sys.argv[1:]
    listed = [repair for repair in repaired.split(",") if repair != "none"]
    main(task, [int(size) for size in sizes.split(",")], listed, Path(folder).resolve())
