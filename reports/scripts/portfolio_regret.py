"""Regret of strategy `portfolio` on the embedded model, against its members in hindsight, on test documents.

`PYTHONPATH=src python reports/scripts/portfolio_regret.py addition,facts 100,400 0,1 > regret.csv`: tasks, documents of
a calibration, draws. Members choose by all documents of the calibration, the portfolio by its own two parts.
"""

import csv
import sys
from itertools import product
from pathlib import Path

import numpy as np

from lamina.config.calibrations import Calibration as Entry
from lamina.config.selectors import Selector
from lamina.data.calibrations import Calibration
from lamina.data.prepare import prepare
from lamina.engine import sweep as engine
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.selection import judging

ROOT = Path(__file__).resolve().parents[2]
FOLDER = str(ROOT / "resources/reference")
MANIFEST = {"path": FOLDER, "source": FOLDER, "trust_remote_code": False, "chat_template": False, "vocabulary": 278}
SIZES, TOKENS = [1, 2, 3], 16384
WAYS = {"half": 0.5, "quarter": 0.25}


def drawn(task: str, split: str, limit: int) -> Calibration:
    """Documents of a split; the test split judges here, and a configuration would refuse it as a calibration."""
    entry = Entry.from_options({"task": f"microworld_{task}", "split": "validation", "limit": limit})
    return prepare(task, entry.model_copy(update={"split": split}), MANIFEST, ROOT)


def main(tasks: list[str], counts: list[int], draws: list[int]) -> None:
    """Write one row per task, calibration, size and way to choose."""
    model, writer = load_folder(FOLDER, "float32", False), csv.writer(sys.stdout)
    head = (
        "task documents draw removed way units member judged_loss corrected_loss accuracy loss base_accuracy base_loss"
    )
    writer.writerow(head.split())
    units = [str(layer) for layer in range(12)]
    for task in tasks:
        test, pool = drawn(task, "test", 600), drawn(task, "validation", 500)
        rows = []
        for count, draw in product(counts, draws):
            numbers = sorted(np.random.default_rng([draw, count]).permutation(len(pool.samples))[:count])
            own = Calibration(tuple(pool.samples[number] for number in numbers), pool.facts)
            keys = {"model": "reference", "calibration": task, "selector": "portfolio"}
            options = Selector.from_options({"strategy": "portfolio", "seed": draw})
            whole, _ = judging.proposals(model, own, options, units, SIZES, keys, "acc_norm", TOKENS)
            for size, sets in whole.items():
                rows += [(count, draw, size, way, gone, "none", "", "") for way, gone in sets.items()]
            for way, share in WAYS.items():
                options = Selector.from_options({"strategy": "portfolio", "seed": draw, "held_back": share})
                plans, _ = judging.searched(model, {task: own}, options, SIZES, keys, "acc_norm", TOKENS)
                for plan in plans:
                    told = (plan.choice["member"], plan.choice["loss"], plan.choice["corrected_loss"])
                    rows.append((count, draw, plan.removed, way, frozenset(plan.units), *told))
        wanted = [Candidate(units) for units in {frozenset[str](), *(row[4] for row in rows)}]
        with engine.opened(model, test.samples, TOKENS, False) as session:
            session.measure(range(len(test.samples)), {candidate.removed: candidate for candidate in wanted})
            found = {}
            for candidate in wanted:
                seen = [session.scores.sample(candidate.removed, number) for number in range(len(test.samples))]
                right = [sample.get("correct_norm", sample["correct"]) for sample in seen]
                found[candidate.removed] = (float(np.mean(right)), float(np.mean([sample["nll"] for sample in seen])))
        for *first, gone, member, loss, corrected in rows:
            sets = [" ".join(sorted(gone, key=int)), member, loss, corrected, *found[gone], *found[frozenset()]]
            writer.writerow([task, *first, *sets])


if __name__ == "__main__":
    main(sys.argv[1].split(","), *([int(number) for number in text.split(",")] for text in sys.argv[2:4]))
