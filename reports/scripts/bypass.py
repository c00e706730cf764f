"""Bypasses of removed attention and MLPs: what they read, their rank and basis, and what they give back.

`PYTHONPATH=src python reports/scripts/bypass.py addition,facts 250 OUT.csv`: tasks of the embedded model, documents
that the repairs are fitted on. The plans are those of `../portfolio/halves.csv`, chosen by the loss of the same 250
documents, and plans of halves that are chosen with the bypasses in place. What OUT.csv holds is not measured again.

Two forms are no repairs of lamina and exist only here. A bypass that reads the norm is fitted on what the norm before
the first removed half gives. With a shared basis, runs of attention alone have maps of rank 16 of their own, and those
with an MLP have one U (C, r) and each its A (r, C).
"""

import csv
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from portfolio_regret import TOKENS, WORLDS, documents

from lamina.data.prepare import prepare_calibration
from lamina.engine import moments, sweep
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.sources import Source
from lamina.models.boundary import Patch
from lamina.models.load import load_folder
from lamina.models.structure import layers_of, sublayers_of
from lamina.models.surgery import find_runs, units_of
from lamina.models.units import all_units
from lamina.options.calibrations import Calibration as Entry
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from lamina.selection import looped
from lamina.selection.plans import PlanRequest

ROOT = Path(__file__).resolve().parents[2]
PLANS = ROOT / "reports/portfolio/halves.csv"
WAYS = ("layer iterative", "both iterative", "both iterative with ghost")
RANKS = {
    "full": (None,),
    "held-out": (8, 16, 24, 32, 48, None),
    "16": (16,),
    "24": (24,),
    "32": (32,),
}
TEXT = {"text": "microworld_corpus", "split": "validation", "documents": "0:50", "length": 128}
GENERAL = {"documents": "50:450"}  # what is fitted on beside the task
# What the bypass reads, its rank, and the weight of a token of general text in the fit. Ranks of attention and of the
# others where there are two.
FORMS = [
    ("stream", "full", "0"),
    ("norm", "full", "0"),
    ("stream", "held-out", "0"),
    ("stream", "16", "0"),
    ("stream", "32", "0"),
    ("norm", "16", "0"),
    ("stream", "16 24", "0"),
    ("stream", "16 32 shared", "0"),
    ("stream", "16 48 shared", "0"),
    ("stream", "full", "0.1"),
    ("stream", "32", "0.1"),
]
HEAD = "task units_and_strategy removed units reads rank ranks parameters base_parameters accuracy loss"
HEAD += " loss_change loss_change_stderr text_loss text_weight"


def reader(model, start):
    """The norm before the half that is removed first."""
    layer = layers_of(model)[int(start)]
    return layer.post_attention_layernorm if start % 1 else layer.input_layernorm


def fits(model, sources, wanted, reads):
    """The fits of all runs by rank, of several ranks the one with the least held-out error; and the sums by run."""
    found, sums = {rank: {} for rank in RANKS}, {}
    norms = {start: reader(model, start) for start, _ in wanted} if reads == "norm" else None
    for run, statistics in moments.collect_moments(model, sources, wanted, 0, regressors=norms):
        sums[run] = statistics.whole()
        for rank, tried in RANKS.items():
            made = [ghost.fit(statistics, Ghost(rank=each)) for each in tried]
            found[rank][run] = min(made, key=lambda fit: fit.facts["heldout_error"])
    return found, sums


def patches_of(rank, made, sums, runs):
    """The patches of a plan's runs, and their ranks."""
    first, *others = rank.split()
    alone = [
        run
        for run in runs
        if not others or all(unit.endswith("attention") for unit in units_of(*run))
    ]
    rest = [run for run in runs if run not in alone]
    own = {run: made[first][run] for run in alone}
    if "shared" not in others:
        own |= {run: made[others[0]][run] for run in rest}
    patches = {run: Patch(**fit.tensors) for run, fit in own.items()}
    ranks = {run: fit.facts["rank"] for run, fit in own.items()}
    if "shared" in others and rest:
        patches |= shared(
            {run: (sums[run], made["full"][run].facts["ridge"]) for run in rest}, int(others[0])
        )
        ranks |= dict.fromkeys(rest, int(others[0]))
    return patches, [ranks[run] for run in runs]


def shared(given, rank):
    """Patches with one input basis, of runs with sums over tokens and a ridge.

    Where the mean Gram matrix of the inputs is the identity, the basis is the leading eigenvectors of the sum of the
    predictions' Gram matrices, each divided by its trace. Of one run this is the reduced-rank regression. Factors that
    have no fewer numbers than their products are multiplied.
    """
    grams, crosses = {}, {run: sums.xd for run, (sums, _) in given.items()}
    for run, (sums, ridge) in given.items():
        # A floor for directions that no stream has.
        grams[run] = sums.xx + max(ridge, 1e-13) * sums.xx.trace() / len(sums.xx) * torch.eye(
            len(sums.xx)
        )
    values, vectors = torch.linalg.eigh(sum(gram / gram.trace() for gram in grams.values()))
    root, total = vectors * values.sqrt() @ vectors.T, 0
    for run, gram in grams.items():
        prediction = root @ torch.linalg.solve(gram, crosses[run])
        total = total + prediction @ prediction.T / prediction.square().sum()
    leading = torch.linalg.eigh(total).eigenvectors[:, -rank:]
    basis = torch.linalg.qr(vectors / values.sqrt() @ vectors.T @ leading).Q
    down, patches = basis.float().contiguous(), {}
    for run, gram in grams.items():
        up = torch.linalg.solve(basis.T @ gram @ basis, basis.T @ crosses[run])
        fewer = (1 + len(grams)) * rank < len(grams) * len(basis)
        patches[run] = Patch(down=down, up=up.float()) if fewer else Patch((basis @ up).float())
    return patches


def added(patches):
    """How many numbers patches have, shared ones once."""
    return sum(
        {
            id(part): part.numel() for each in patches.values() for part in each.tensors.values()
        }.values()
    )


@dataclass(frozen=True, eq=False)
class Reading(Patch):
    """x + norm(x) M in a pass."""

    norm: Any = None

    def repaired(self, stream):
        return stream + self.norm(stream) @ self.matrix


def scores(model, samples, forms):
    """The scores of each sample, by form."""
    with sweep.open_session(model, samples, TOKENS, False) as session:
        session.measure(range(len(samples)), forms)
        return {
            name: [session.scores.sample(name, number) for number in range(len(samples))]
            for name in forms
        }


def plans_of(way, task, model, samples):
    """The units of each size that a way to choose removes."""
    if way != WAYS[2]:
        told = [
            row
            for row in csv.DictReader(PLANS.open())
            if (row["task"], row["units_and_strategy"]) == (task, way)
        ]
        return {int(row["removed"]): frozenset(row["units"].split()) for row in told}
    depth, parts = len(layers_of(model)), sublayers_of(layers_of(model)[0])
    counts = {
        part: sum(w.numel() for half in some for w in half.module.parameters())
        for part, some in parts.items()
    }
    attention, gone, plans = counts["attention"] / sum(counts.values()), [], {}
    for size in (1, 2, 3):
        current = Candidate(frozenset(gone))
        wanted = {CURRENT: current} | {
            unit: current.without(unit) for unit in all_units(depth, "both", gone)
        }
        sources = [Source([sample.sequence() for sample in samples])]
        repairs = looped.fit_loop_patches(model, sources, list(wanted.values()), Ghost(), 0)
        with sweep.open_session(model, samples, TOKENS, False) as session:
            looped.Looped(session, repairs).measure(range(len(samples)), wanted)
            losses = {
                unit: np.mean(
                    [session.scores.sample(unit, number)["nll"] for number in range(len(samples))]
                )
                for unit in wanted
            }
        before = losses.pop(CURRENT)
        ranked = sorted(
            ((unit, float(loss - before)) for unit, loss in losses.items()),
            key=lambda entry: entry[1],
        )
        request = PlanRequest(size, "both", depth, frozenset(), 0, attention_share=attention)
        gone += [unit for unit, _ in request.lowest(ranked, gone)]
        plans[size] = frozenset(gone)
    return plans


def main(tasks: list[str], count: int, out: Path) -> None:
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.is_file() else []
    known, of = {(row[0], row[1], row[4], row[5], row[-1]) for row in rows}, WORLDS["reference"]
    manifest = {"path": str(of.folder), "source": str(of.folder), "trust_remote_code": False}
    manifest |= {
        "chat_template": False,
        "fewshot_as_turns": None,
        "system_prompt": None,
        "template_arguments": {},
    }
    model = load_folder(str(of.folder), of.dtype, False)
    depth, size = len(layers_of(model)), sum(weight.numel() for weight in model.parameters())
    manifest["vocabulary"] = model.config.vocab_size
    text, general = (
        prepare_calibration("corpus", Entry.from_options(TEXT | each), manifest, ROOT)
        for each in ({}, GENERAL)
    )
    drawn = {task: documents("reference", task) for task in tasks}
    for way, task in product(WAYS, tasks):
        bare = ("none", "", "0")
        wanted = [
            form
            for form in [bare, *(FORMS if way == WAYS[1] else FORMS[:2])]
            if (task, way, *form) not in known
        ]
        if not wanted:
            continue
        pool, test = drawn[task]
        chosen = [
            pool.samples[number]
            for number in np.random.default_rng(0).permutation(len(pool.samples))[:count]
        ]
        plans = plans_of(way, task, model, chosen)
        gone = {n: find_runs(units, depth) for n, units in plans.items()}
        samples, forms, made = (*test.samples, *text.samples), {}, {}
        for reads, weight in sorted({(form[0], form[2]) for form in wanted} - {("none", "0")}):
            sources = [Source([sample.sequence() for sample in chosen])]
            sources += [Source(general.sequences(), float(weight))] if float(weight) else []
            made[reads, weight] = fits(
                model, sources, sorted({run for part in gone.values() for run in part}), reads
            )
        ranks = {}
        for n, units in plans.items():
            forms[n, *bare], ranks[n, *bare] = Candidate(units), []
            for reads, rank, weight in (form for form in wanted if form != bare):
                form = n, reads, rank, weight
                patches, ranks[form] = patches_of(rank, *made[reads, weight], gone[n])
                if reads == "norm":
                    patches = {
                        run: Reading(**each.tensors, norm=reader(model, run[0]))
                        for run, each in patches.items()
                    }
                forms[form] = Candidate(units, patches)
        seen, asked = scores(model, samples, forms), len(test.samples)
        for (n, *form), told in seen.items():
            if tuple(form) not in wanted:
                continue
            losses, before = (
                np.array([one["nll"] for one in some[:asked]]) for some in (told, seen[n, *bare])
            )
            right, change = (
                [one.get("correct_norm", one["correct"]) for one in told[:asked]],
                losses - before,
            )
            rows.append(
                [
                    task,
                    way,
                    n,
                    " ".join(sorted(plans[n])),
                    *form[:2],
                    " ".join(map(str, ranks[n, *form])),
                ]
                + [added(forms[n, *form].patches), size]
                + [float(np.mean(right)), float(losses.mean()), float(change.mean())]
                + [float(change.std(ddof=1) / asked**0.5)]
                + [
                    sum(one["nll"] for one in told[asked:])
                    / sum(one["n_tokens"] for one in told[asked:]),
                    form[2],
                ]
            )
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    tasks, count, out = sys.argv[1:]
    main(tasks.split(","), int(count), Path(out).resolve())
