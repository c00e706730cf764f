"""Bypasses of removed attention and MLPs: what they read, their rank, and what they give back.

`PYTHONPATH=src python reports/scripts/bypass.py addition,facts 250 OUT.csv`: tasks of the embedded model, documents
that the repairs are fitted on. The plans are those of `../portfolio/halves.csv`, chosen by the loss of the same 250
documents, and plans of halves that are chosen with the bypasses in place. What OUT.csv holds is not measured again.

A bypass that reads the norm is no repair of lamina and exists only here. Its map is fitted on what the norm before the
first removed half gives.
"""

import csv
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from portfolio_regret import TOKENS, WORLDS, documents

from lamina.config.calibrations import Calibration as Entry
from lamina.data.prepare import prepare
from lamina.engine import moments
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.sources import Source
from lamina.models.boundary import Patch
from lamina.models.load import load_folder
from lamina.models.structure import halves, layers_of
from lamina.models.surgery import runs
from lamina.models.units import all_units
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.selection import looped
from lamina.selection.plans import Request

ROOT = Path(__file__).resolve().parents[2]
PLANS = ROOT / "reports/portfolio/halves.csv"
WAYS = ("layer iterative", "both iterative", "both iterative with ghost")
RANKS = {"full": (None,), "held-out": (8, 16, 24, 32, 48, None), "16": (16,), "32": (32,)}
TEXT = {"text": "microworld_corpus", "split": "validation", "documents": "0:50", "length": 128}
FORMS = [
    ("stream", "full"),
    ("norm", "full"),
    ("stream", "held-out"),
    ("stream", "16"),
    ("stream", "32"),
    ("norm", "16"),
]
HEAD = "task units_and_strategy removed units reads rank ranks parameters base_parameters accuracy loss"
HEAD += " loss_change loss_change_stderr text_loss"


def reader(model, start):
    """The norm before the half that is removed first."""
    layer = layers_of(model)[int(start)]
    return layer.post_attention_layernorm if start % 1 else layer.input_layernorm


def fits(model, sequences, wanted, reads):
    """The fits of all runs by rank; of several ranks the one with the least held-out error."""
    found = {rank: {} for rank in RANKS}
    norms = {start: reader(model, start) for start, _ in wanted} if reads == "norm" else None
    for run, statistics in moments.collect(model, [Source(sequences)], wanted, 0, regressors=norms):
        for rank, tried in RANKS.items():
            made = [ghost.fit(statistics, Ghost(rank=each)) for each in tried]
            found[rank][run] = min(made, key=lambda fit: fit.facts["heldout_error"])
    return found


@dataclass(frozen=True, eq=False)
class Reading(Patch):
    """x + norm(x) M in a pass."""

    norm: Any = None

    def repaired(self, stream):
        return stream + self.norm(stream) @ self.operator


def scores(model, samples, forms):
    """The scores of each sample, by form."""
    with engine.opened(model, samples, TOKENS, False) as session:
        session.measure(range(len(samples)), forms)
        return {name: [session.scores.sample(name, number) for number in range(len(samples))] for name in forms}


def plans_of(way, task, model, samples):
    """The units of each size that a way to choose removes."""
    if way != WAYS[2]:
        told = [row for row in csv.DictReader(PLANS.open()) if (row["task"], row["units_and_strategy"]) == (task, way)]
        return {int(row["removed"]): frozenset(row["units"].split()) for row in told}
    depth, parts = len(layers_of(model)), halves(layers_of(model)[0])
    counts = {part: sum(w.numel() for half in some for w in half.module.parameters()) for part, some in parts.items()}
    attention, gone, plans = counts["attention"] / sum(counts.values()), [], {}
    for size in (1, 2, 3):
        current = Candidate(frozenset(gone))
        wanted = {CURRENT: current} | {unit: current.without(unit) for unit in all_units(depth, "both", gone)}
        sources = [Source([sample.sequence() for sample in samples])]
        repairs = looped.fitted(model, sources, list(wanted.values()), Ghost(), 0)
        with engine.opened(model, samples, TOKENS, False) as session:
            looped.Looped(session, repairs).measure(range(len(samples)), wanted)
            losses = {
                unit: np.mean([session.scores.sample(unit, number)["nll"] for number in range(len(samples))])
                for unit in wanted
            }
        before = losses.pop(CURRENT)
        ranked = sorted(((unit, float(loss - before)) for unit, loss in losses.items()), key=lambda entry: entry[1])
        request = Request(size, "both", depth, frozenset(), 0, attention=attention)
        gone += [unit for unit, _ in request.lowest(ranked, gone)]
        plans[size] = frozenset(gone)
    return plans


def main(tasks: list[str], count: int, out: Path) -> None:
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.is_file() else []
    known, of = {(row[0], row[1]) for row in rows}, WORLDS["reference"]
    manifest = {"path": str(of.folder), "source": str(of.folder), "trust_remote_code": False}
    manifest |= {"chat_template": False, "fewshot_as_turns": None, "system_prompt": None, "template_arguments": {}}
    model = load_folder(str(of.folder), of.dtype, False)
    depth, width = len(layers_of(model)), model.config.hidden_size
    manifest["vocabulary"] = model.config.vocab_size
    size = sum(weight.numel() for weight in model.parameters())
    text = prepare("corpus", Entry.from_options(TEXT), manifest, ROOT)
    drawn = {task: documents("reference", task) for task in tasks}
    for way, task in product(WAYS, tasks):
        if (task, way) in known:
            continue
        pool, test = drawn[task]
        chosen = [pool.samples[number] for number in np.random.default_rng(0).permutation(len(pool.samples))[:count]]
        plans, sequences = plans_of(way, task, model, chosen), [sample.sequence() for sample in chosen]
        wanted = sorted({run for units in plans.values() for run in runs(units, depth)})
        made = {reads: fits(model, sequences, wanted, reads) for reads in ("stream", "norm")}
        samples, forms = (*test.samples, *text.samples), {}
        for n, units in plans.items():
            forms[n, "none", ""] = Candidate(units)
            for reads, rank in FORMS if way == WAYS[1] else FORMS[:2]:
                fitted = {run: made[reads][rank][run].tensors["operator"] for run in runs(units, depth)}
                norms = {run: reader(model, run[0]) for run in fitted}
                patches = {run: Reading(each, norm=norms[run]) for run, each in fitted.items()}
                if reads == "stream":
                    patches = {run: Patch(each) for run, each in fitted.items()}
                forms[n, reads, rank] = Candidate(units, patches)
        seen, asked = scores(model, samples, forms), len(test.samples)
        for (n, reads, rank), told in seen.items():
            units, bare = plans[n], seen[n, "none", ""]
            losses, before = (np.array([one["nll"] for one in some[:asked]]) for some in (told, bare))
            right = [one.get("correct_norm", one["correct"]) for one in told[:asked]]
            ranks = [made[reads][rank][run].facts["rank"] for run in runs(units, depth)] if rank else []
            change = losses - before
            rows.append(
                [task, way, n, " ".join(sorted(units)), reads, rank, " ".join(map(str, ranks))]
                + [sum(min(2 * width * each, width**2) for each in ranks), size]
                + [float(np.mean(right)), float(losses.mean()), float(change.mean())]
                + [float(change.std(ddof=1) / asked**0.5)]
                + [sum(one["nll"] for one in told[asked:]) / sum(one["n_tokens"] for one in told[asked:])]
            )
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    tasks, count, out = sys.argv[1:]
    main(tasks.split(","), int(count), Path(out).resolve())
