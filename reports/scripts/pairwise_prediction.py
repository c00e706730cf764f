"""How well sums of single and pair effects predict the loss of whole sets, and what the best set by them costs.

`PYTHONPATH=src python reports/scripts/pairwise_prediction.py reference addition,facts 200 OUT.csv`: one of the WORLDS
of portfolio_regret.py, tasks, documents of the pool that are measured. Half of the documents make the model, the other
half measure SETS drawn sets of each size; the chosen sets are measured on the test documents.
"""

import csv
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
from portfolio_regret import TOKENS, WORLDS, documents, spelled
from scipy.stats import spearmanr

from lamina.engine import sweep
from lamina.engine.candidates import Candidate
from lamina.models.load import load_folder
from lamina.selection.strategies.pairwise import estimate_effects, minimise

SETS = 20
HEAD = "task documents removed kind model spearman r2 units loss base_loss accuracy base_accuracy n"


def losses(model, samples, sets, text):
    """(samples,) losses of each set, and whether the answers are right."""
    candidates, found = [Candidate(each) for each in dict.fromkeys(sets)], {}
    with sweep.open_session(model, samples, TOKENS, False) as session:
        numbers = range(len(samples))
        session.measure(numbers, {each.removed: each for each in candidates})
        for each in candidates:
            seen = [session.scores.sample(each.removed, number) for number in numbers]
            loss = np.array([one["nll"] / (one["n_tokens"] if text else 1) for one in seen])
            found[each.removed] = (
                loss,
                np.array([one.get("correct_norm", one["correct"]) for one in seen]),
            )
    return found


def main(world: str, tasks: list[str], count: int, out: Path) -> None:
    of, rows = WORLDS[world], []
    model = load_folder(str(of.folder), of.dtype, False)
    units = [str(layer) for layer in range(sweep.layer_count(model))]
    for task in tasks:
        pool, test = documents(world, task)
        text, draw = task == "stories", np.random.default_rng(0)
        numbers = draw.permutation(len(pool.samples))[:count]
        first, second = (
            tuple(pool.samples[n] for n in some) for some in np.array_split(numbers, 2)
        )
        sets = [
            frozenset[str](),
            *(frozenset(some) for size in (1, 2) for some in combinations(units, size)),
        ]
        made = {each: loss for each, (loss, _) in losses(model, first, sets, text).items()}
        a, b = estimate_effects(made, units)
        base = made[frozenset()].mean()
        order = sorted(range(len(units)), key=lambda n: a[n])
        # Sets that somebody would try: drawn from the two thirds of the units that lose least alone.
        free = order[: round(len(units) * 2 / 3)]
        drawn = {
            size: [
                frozenset(units[n] for n in draw.choice(free, size, replace=False))
                for _ in range(SETS)
            ]
            for size in of.sizes
        }
        for sets_of in drawn.values():
            sets_of[:] = dict.fromkeys(sets_of)
        seen = losses(
            model,
            second,
            [frozenset[str](), *(each for some in drawn.values() for each in some)],
            text,
        )
        chosen = {}
        for size, some in drawn.items():
            truth = np.array([seen[each][0].mean() - seen[frozenset()][0].mean() for each in some])
            for name, pairs in (("singles", np.zeros_like(b)), ("pairs", b)):
                members = [[int(unit) for unit in each] for each in some]
                guess = np.array([a[m].sum() + pairs[np.ix_(m, m)].sum() / 2 for m in members])
                r2 = 1 - ((truth - guess) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
                rows.append(
                    [
                        task,
                        count,
                        size,
                        "predicts",
                        name,
                        spearmanr(truth, guess).statistic,
                        r2,
                        *[""] * 5,
                    ]
                )
                rows[-1].append(len(some))
                chosen[size, name] = frozenset(units[n] for n in minimise(a, pairs, size))
        judged = losses(model, test.samples, [frozenset[str](), *chosen.values()], text)
        for (size, name), gone in chosen.items():
            ends = [float(x.mean()) for each in (gone, frozenset[str]()) for x in judged[each]]
            rows.append(
                [
                    task,
                    count,
                    size,
                    "chosen",
                    name,
                    "",
                    "",
                    spelled(gone),
                    ends[0],
                    ends[2],
                    ends[1],
                    ends[3],
                ]
            )
            rows[-1].append(len(test.samples))
        print(task, base, flush=True)
        with out.open("w", newline="") as file:
            csv.writer(file).writerows([HEAD.split(), *rows])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4]).resolve())
