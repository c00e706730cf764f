"""Which cuts are worth having as drafts: selectors and sizes, patched or not, each with the model that it was cut from.

    python benchmarks/drafts.py --output FILE                                the embedded model and general text
    python benchmarks/drafts.py --output FILE --model MODEL --text FILE      a model on disk and its kind of text
    python benchmarks/drafts.py --output FILE --summary                      the table in markdown of what is there

Layers are chosen and patches fitted on the same documents, prompts are the beginnings of others. Seconds are those of
the processor in one thread, since whatever else runs would be counted too; passes of models as small as these cost
mostly what calling a layer costs. What the file holds is not measured again.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from cases import REFERENCE
from repair_cases import WINDOW, corpus, loaded
from transformers import PreTrainedModel

from lamina.config.benchmarks import Drafts
from lamina.data.calibrations import Sample
from lamina.data.documents import read_documents
from lamina.data.text import text_samples
from lamina.engine import sweep as engine
from lamina.engine.candidates import CURRENT, Candidate
from lamina.engine.sources import Source
from lamina.evaluation import drafts, speculation
from lamina.models.boundary import Boundary
from lamina.models.materialise import materialise
from lamina.models.surgery import removed_layers, runs
from lamina.models.units import all_units
from lamina.relevance.columns import Context, from_table
from lamina.relevance.score import ranking
from lamina.repair.methods import ghost
from lamina.repair.methods.ghost import Ghost
from lamina.repair.protocol import Fitted
from lamina.report.figures.style import Z95
from lamina.selection import looped
from lamina.selection.looped import Repairs
from lamina.store import parquet as store

SELECTORS = {"accuracy": ("accuracy", False), "acceptance": ("acceptance", False), "looped": ("acceptance", True)}
SEED = 0


def every_run(depth: int, largest: int) -> list[Boundary]:
    """The runs of up to `largest` layers."""
    lengths = range(1, largest + 1)
    return [(start, start + length) for length in lengths for start in range(depth - length + 1)]


def next_unit(
    model: PreTrainedModel, samples: Sequence[Sample], removed: Sequence[str], metric: str, repairs: Repairs | None
) -> str:
    """The layer that an iterative selector removes next."""
    current, depth = Candidate(frozenset(removed)), engine.layer_count(model)
    wanted = {CURRENT: current}
    wanted |= {unit: current.without(unit) for unit in all_units(depth, "layer", removed)}
    with engine.opened(model, samples) as session:
        measuring = looped.Looped(session, repairs) if repairs else session
        measuring.measure(range(len(samples)), wanted)
        keys = {"model": "", "calibration": "", "selector": "", "removed": len(removed)}
        columns = from_table(store.from_rows("sweeps", session.scores.rows(wanted), **keys))
    ranks = ranking(columns, metric, Context(1 / model.config.vocab_size, "acc", len(removed))).ranks
    assert ranks is not None, "the base model is at chance"
    return columns.units[ranks.index(1)]


def plans(model: PreTrainedModel, samples: Sequence[Sample], largest: int, selector: str) -> list[str]:
    """Layers in the order in which a selector removes them."""
    metric, repaired = SELECTORS[selector]
    repairs = None
    if repaired:
        sources = [Source([sample.sequence() for sample in samples])]
        alone = [Candidate(frozenset(map(str, range(*run)))) for run in every_run(engine.layer_count(model), largest)]
        repairs = looped.fitted(model, sources, alone, Ghost(), SEED)
    units: list[str] = []
    while len(units) < largest:
        units.append(next_unit(model, samples, units, metric, repairs))
    return units


def patches(model: PreTrainedModel, samples: Sequence[Sample], units: Sequence[str]) -> Mapping[Boundary, Fitted]:
    """Ghost patches of all runs that the units leave."""
    needed, options = runs(removed_layers(units), engine.layer_count(model)), Ghost()
    found = ghost.collect(model, [Source([sample.sequence() for sample in samples])], needed, options, SEED)
    return {run: Fitted("ghost", ghost.fit(sums, options).tensors) for run, sums in found}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per variant, greedy beside sampled; ± is half the 95 % interval over prompts."""
    head = [
        "removed",
        "selector",
        "",
        "acceptance",
        "that pays",
        "tokens a round",
        "c",
        "v",
        "speed-up",
        "sampled: acceptance",
    ]
    lines = ["| " + " | ".join([*head, "speed-up"]) + " |", "|" + "---|" * 11]
    pairs = {(row["removed"], row["selector"], row["repair"]): {} for row in rows}
    for row in rows:
        pairs[row["removed"], row["selector"], row["repair"]][row["decoding"]] = row

    def told(row: Mapping[str, Any], key: str, digits: int) -> str:
        return f"{row[key]:.{digits}f} ± {Z95 * row[f'{key}_stderr']:.{digits}f}"

    for (removed, selector, repair), pair in sorted(pairs.items()):
        greedy, sampled = pair["greedy"], pair["sampled"]
        pays = "never" if greedy["break_even"] is None else f"{greedy['break_even']:.2f}"
        cells = [str(removed), selector, repair, told(greedy, "acceptance", 3), pays]
        cells += [told(greedy, "tokens_per_round", 2), f"{greedy['cost']:.2f}", f"{greedy['verification']:.2f}"]
        cells += [told(greedy, "speedup", 2), told(sampled, "acceptance", 3), told(sampled, "speedup", 2)]
        lines.append("| " + " | ".join(cells) + " |")
    losses = sum(row["n_samples"] - row["same"] for row in rows if row["decoding"] == "greedy")
    return "\n".join([*lines, "", f"n = {rows[0]['n_samples']} prompts; texts that differ from the base's: {losses}."])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="JSON lines, one per variant and way of decoding")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--model", type=Path, help="folder of a model; by default the embedded one")
    parser.add_argument("--text", type=Path, help="with --model: documents, of which half are for calibration")
    parser.add_argument("--sizes", nargs="+", type=int, default=[5, 6, 7, 8])
    parser.add_argument("--selectors", nargs="+", choices=SELECTORS, default=list(SELECTORS))
    parser.add_argument("--documents", type=int, default=200, help="to choose layers and fit patches on")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--draft", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in args.output.read_text().splitlines()] if args.output.exists() else []
    if args.summary:
        print(summary(rows))
        raise SystemExit
    speculation.clock = time.process_time
    model, tokenizer = loaded(args.model or REFERENCE)
    documents = read_documents(args.text) if args.text else []
    half = len(documents) // 2
    seen, unseen = (documents[:half], documents[half:]) if documents else (corpus("validation"), corpus("test"))
    samples = text_samples(seen[: args.documents], tokenizer, WINDOW)
    options = Drafts(text="-", prompts=args.prompts, prompt=args.prompt, tokens=args.tokens, draft=args.draft)
    asked = drafts.prompts(unseen, tokenizer, options)
    for selector in args.selectors:
        done = {row["removed"] for row in rows if row["selector"] == selector}
        if done >= set(args.sizes):
            continue
        began = time.monotonic()
        order = plans(model, samples, max(args.sizes), selector)
        print(
            json.dumps({"selector": selector, "order": order, "seconds": round(time.monotonic() - began)}), flush=True
        )
        for size in (size for size in args.sizes if size not in done):
            units = order[:size]
            built = {"none": materialise(model, {"units": units})}
            built["ghost"] = materialise(model, {"units": units}, patches(model, samples, units))
            keys = {"removed": size, "selector": selector, "units": units}
            variants = [({**keys, "repair": name}, variant) for name, variant in built.items()]
            found = drafts.measure(model, variants, asked, options)
            with args.output.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
