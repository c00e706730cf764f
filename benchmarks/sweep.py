"""How much cheaper the engine makes a sweep than evaluating each cut model with lm-eval, on the same samples.

    python benchmarks/sweep.py            a table
    python benchmarks/sweep.py --json     one JSON object on standard output

All ways run in this process, in turn, and the median of the ratios of their times is what counts: absolute times of a
busy machine say little. `bound` is the ratio of the layer-tokens that both ways have to run.
"""

import argparse
import copy
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cases import NEAR_TIE, REFERENCE, Case, cases, pass_bytes, peak_of
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer

from lamina.data.calibrations import Sample
from lamina.engine import packing, sweep
from lamina.engine.candidates import CURRENT
from lamina.engine.scores import Scores
from lamina.models.boundary import share_weights
from lamina.models.surgery import apply_edits
from lamina.models.units import all_units


@dataclass
class Result:
    """One way's run of one case: the units it removed, and the scores of its first step."""

    removed: list[str]
    scores: Scores


class Ways:
    """The ways to find the next unit (or several, one after the other) of one case."""

    def __init__(self, case: Case, tokens: int) -> None:
        self.case, self.tokens = case, tokens
        longest = max(
            len(row.context + row.continuation) for sample in case.samples for row in sample.rows
        )
        self.lm = HFLM(
            pretrained=copy.deepcopy(case.model),
            tokenizer=AutoTokenizer.from_pretrained(REFERENCE),
            batch_size=max(1, tokens // longest),
        )
        rows = [row for sample in case.samples for row in sample.rows]
        # A text is one row; lm-eval asks for its continuation like any other.
        self.requests: list[Any] = [
            (("", ""), list(row.context), list(row.continuation)) for row in rows
        ]
        # lm-eval shares rows that differ in their last token only.
        distinct = [
            {row.context + row.continuation[:-1] for row in sample.rows} for sample in case.samples
        ]
        self.row_tokens = sum(len(row) for group in distinct for row in group)
        lines = [
            line
            for number, sample in enumerate(case.samples)
            for line in packing.pack_sample(number, sample)
        ]
        self.packed_tokens = sum(len(line.tokens) for line in lines)

    def naive(self) -> Result:
        """lm-eval's own loop on one cut model after another."""
        removed: list[str] = []
        first: Scores | None = None
        depth = sweep.layer_count(self.case.model)
        for _ in range(self.case.steps):
            units = all_units(depth, "layer", removed)
            scores = Scores(self.case.samples)
            scores.add([CURRENT, *units])
            for number, unit in enumerate(scores.names):
                gone = removed + [unit] * (unit != CURRENT)
                self.lm._model = (
                    apply_edits(share_weights(self.case.model), gone) if gone else self.case.model
                )
                answered = self.lm._loglikelihood_tokens(self.requests, disable_tqdm=True)
                scores.loglikelihood[number] = [score for score, _ in answered]
                greedy = np.array([is_greedy for _, is_greedy in answered])
                scores.hits[number] = greedy * [
                    len(continuation) for _, _, continuation in self.requests
                ]
            scores.seen[:] = scores.scored[:] = True
            first = first or scores
            removed.append(self.least(scores))
        assert first is not None
        return Result(removed, first)

    def full(self, outputs: bool = False) -> Result:
        """The engine's sweep."""
        removed: list[str] = []
        first: Scores | None = None
        for _ in range(self.case.steps):
            units = all_units(sweep.layer_count(self.case.model), "layer", removed)
            with sweep.open_session(
                self.case.model, self.case.samples, self.tokens, outputs
            ) as session:
                session.sweep(units, removed)
            first = first or session.scores
            removed.append(self.least(session.scores))
        assert first is not None
        return Result(removed, first)

    def least(self, scores: Scores) -> str:
        """The unit that goes next: of those that saw most, the one that is missed least, then the deepest."""
        right = np.zeros(scores.seen.shape)
        everyone = range(len(scores.names))
        for number, sample in enumerate(scores.samples):
            if self.case.metric == "perplexity":
                right[:, number] = scores.loglikelihood[:, scores.offsets[number] + sample.gold]
            else:
                right[:, number] = scores.correct(everyone, number, normalised=True)
        seen = scores.seen.sum(axis=1)
        places = {int(unit): place for unit, place in scores.index.items() if unit != CURRENT}
        best = max(
            places,
            key=lambda n: (seen[places[n]], right[places[n]][scores.seen[places[n]]].sum(), n),
        )
        return str(best)

    def bound(self) -> float:
        """Layer-tokens of the naive loop over those of the engine with nothing padded."""
        depth, naive, shared = sweep.layer_count(self.case.model), 0.0, 0.0
        for removed in range(self.case.steps):
            left = depth - removed
            naive += self.row_tokens * (left + left * (left - 1))
            shared += self.packed_tokens * (left + left * (left - 1) / 2)
        return naive / shared


def predictions(samples: Sequence[Sample], scores: np.ndarray) -> list[tuple[int, bool]]:
    """Best choice of each sample and whether it is a near tie."""
    found, start = [], 0
    for sample in samples:
        part = scores[start : start + len(sample.rows)]
        start += len(sample.rows)
        ordered = np.sort(part)[::-1]
        found.append((int(part.argmax()), len(part) > 1 and ordered[0] - ordered[1] < NEAR_TIE))
    return found


def same_predictions(samples: Sequence[Sample], mine: Scores, theirs: Scores) -> bool:
    """Whether both choose alike wherever both measured and nothing nearly ties."""
    for unit, place in mine.index.items():
        pairs = zip(
            predictions(samples, mine.loglikelihood[place]),
            predictions(samples, theirs.loglikelihood[theirs.index[unit]]),
            mine.seen[place],
            strict=True,
        )
        if not all(a == b for (a, tie), (b, _), seen in pairs if seen and not tie):
            return False
    return True


def measure(case: Case, repeats: int, tokens: int) -> list[dict[str, Any]]:
    """Run all ways in turn and compare times and results."""
    ways = Ways(case, tokens)
    run: dict[str, Callable[[], Result]] = {"naive": ways.naive, "engine": ways.full}
    if not case.steps > 1:
        run["all_metrics"] = lambda: ways.full(outputs=True)
    peak = peak_of(ways.full)
    longest = max(len(packing.pack_sample(0, sample)[0].tokens) for sample in case.samples)
    seconds: dict[str, list[float]] = {name: [] for name in run}
    results: dict[str, Result] = {}
    for turn in range(repeats + 1):
        for name, way in run.items():
            began = time.perf_counter()
            results[name] = way()
            if turn:  # the first is a warm-up
                seconds[name].append(time.perf_counter() - began)
    naive = results["naive"]
    records = []
    for name in run:
        if name == "naive":
            continue
        result, ratios = (
            results[name],
            [a / b for a, b in zip(seconds["naive"], seconds[name], strict=True)],
        )
        mine, theirs = result.scores, naive.scores
        order = [theirs.index[unit] for unit in mine.names]
        difference = np.abs(mine.loglikelihood - theirs.loglikelihood[order])
        record = {
            "case": case.name,
            "method": name,
            "ratio": round(statistics.median(ratios), 2),
            "lowest": round(min(ratios), 2),
            "highest": round(max(ratios), 2),
            "bound": round(ways.bound(), 2),
            "same_predictions": same_predictions(case.samples, result.scores, naive.scores),
            "same_plan": result.removed == naive.removed,
            "max_loglik_diff": float(
                difference[np.repeat(mine.seen, np.diff(mine.offsets), axis=1)].max(initial=0.0)
            ),
            "repeats": repeats,
            "samples": len(case.samples),
        }
        if name == "engine":
            record |= {
                "peak_bytes": peak,
                "predicted_bytes": pass_bytes(case.model.config, tokens, longest, 4),
            }
        records.append(record)
    return records


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--tokens", type=int, default=16384, help="budget of one pass, for all ways"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("cases", nargs="*", help="names; all if none are given")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(args.threads)
    rows: list[dict[str, Any]] = []
    for case in cases(args.cases):
        rows += measure(case, args.repeats, args.tokens)
        for row in rows:
            if row["case"] == case.name:
                text = "{case:22} {method:12} {ratio:6} of {bound:6} ({lowest} to {highest}) same plan {same_plan}"
                print(row if args.json else text.format(**row), file=sys.stderr, flush=True)
    if args.json:
        print(json.dumps({"cases": rows}))
