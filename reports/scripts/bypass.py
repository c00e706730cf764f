"""Bypasses of removed attention and MLPs: what they read, their rank, and what they give back.

`PYTHONPATH=src python reports/scripts/bypass.py addition,facts 250 OUT.csv`: tasks of the embedded model, documents
that the repairs are fitted on. The plans are those of `../portfolio/halves.csv`, chosen by the loss of the same 250
documents. What OUT.csv holds is not measured again.

A bypass that reads the norm is no repair of lamina: here it is a hook on a cut model. Its map is fitted on what the
norm before the first removed half gives.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from portfolio_regret import TOKENS, WORLDS, documents

from lamina.config.calibrations import Calibration as Entry
from lamina.data.prepare import prepare
from lamina.engine import moments
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate
from lamina.engine.sources import Source
from lamina.models.boundary import Place
from lamina.models.load import load_folder
from lamina.models.materialise import materialise
from lamina.models.structure import final_norm_of, layers_of
from lamina.models.surgery import kept_layers, runs
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost

ROOT = Path(__file__).resolve().parents[2]
PLANS = ROOT / "reports/portfolio/halves.csv"
WAYS = ("layer iterative", "both iterative")
RANKS = {"full": (None,), "held-out": (8, 16, 24, 32, 48, None), "16": (16,), "32": (32,)}
TEXT = {"text": "microworld_corpus", "split": "validation", "documents": "0:50", "length": 128}
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


def reading_norms(model, units, maps):
    """The cut model with x + norm(x) M where each run went."""
    variant, kept = materialise(model, {"units": sorted(units)}), kept_layers(model, sorted(units))
    for run, operator in maps.items():
        layers, place = layers_of(variant), Place.of(run, kept).position
        norm = reader(model, run[0])

        def hook(module, args, kwargs, norm=norm, operator=operator):
            x = args[0] if args else kwargs.pop("hidden_states")
            return (x + norm(x) @ operator, *args[1:]), kwargs

        behind = layers[place] if place < len(layers) else final_norm_of(variant)
        behind.register_forward_pre_hook(hook, with_kwargs=True)
    return variant


def scores(model, samples, forms):
    """The scores of each sample, by form."""
    with engine.opened(model, samples, TOKENS, False) as session:
        session.measure(range(len(samples)), forms)
        return {name: [session.scores.sample(name, number) for number in range(len(samples))] for name in forms}


def main(tasks: list[str], count: int, out: Path) -> None:
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.is_file() else []
    known, of = {row[0] for row in rows}, WORLDS["reference"]
    manifest = {"path": str(of.folder), "source": str(of.folder), "trust_remote_code": False}
    manifest |= {"chat_template": False, "fewshot_as_turns": None, "system_prompt": None, "template_arguments": {}}
    model = load_folder(str(of.folder), of.dtype, False)
    depth, width = len(layers_of(model)), model.config.hidden_size
    manifest["vocabulary"] = model.config.vocab_size
    size = sum(weight.numel() for weight in model.parameters())
    for task in [task for task in tasks if task not in known]:
        pool, test = documents("reference", task)
        text = prepare("corpus", Entry.from_options(TEXT), manifest, ROOT)
        drawn = np.random.default_rng(0).permutation(len(pool.samples))[:count]
        sequences = [pool.samples[number].sequence() for number in drawn]
        plans = {
            (row["units_and_strategy"], int(row["removed"])): frozenset(row["units"].split())
            for row in csv.DictReader(PLANS.open())
            if row["task"] == task and row["units_and_strategy"] in WAYS
        }
        wanted = sorted({run for units in plans.values() for run in runs(units, depth)})
        made = {reads: fits(model, sequences, wanted, reads) for reads in ("stream", "norm")}
        samples, forms = (*test.samples, *text.samples), {}
        for (way, n), units in plans.items():
            forms[way, n, "none", ""] = Candidate(units)
            for rank in RANKS if way == WAYS[1] else ["full"]:
                fitted = {run: made["stream"][rank][run].tensors for run in runs(units, depth)}
                patches = {run: ghost.as_patch(tensors) for run, tensors in fitted.items()}
                forms[way, n, "stream", rank] = Candidate(units, patches)
        seen = scores(model, samples, forms)
        for (way, n), units in plans.items():
            for rank in ["full", "16"] if way == WAYS[1] else ["full"]:
                fitted = {run: made["norm"][rank][run].tensors["operator"] for run in runs(units, depth)}
                name = (way, n, "norm", rank)
                seen |= scores(reading_norms(model, units, fitted), samples, {name: Candidate()})
        asked = len(test.samples)
        for (way, n, reads, rank), told in seen.items():
            units, bare = plans[way, n], seen[way, n, "none", ""]
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
