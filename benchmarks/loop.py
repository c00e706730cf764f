"""What selection with the repair in the loop costs, against the plain sweep of the same samples.

    python benchmarks/loop.py [--tokens 16384] [CASE …]

One step of a search: every layer of the model removed in turn. Seconds of the processor, the two ways taking turns; the
solves are taken off, since they depend on the channels alone. The bar for both ratios is 1.5; layer-tokens count what
every layer ran on, the base model's passes for the patches included.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from cases import Case, cases

from lamina.engine import sweep
from lamina.engine.candidates import Candidate, plan_sweep
from lamina.engine.sources import Source
from lamina.models.structure import layers_of
from lamina.models.units import all_units
from lamina.repairs.methods import ghost
from lamina.repairs.methods.ghost import Ghost
from lamina.selection import looped


def plain(case: Case, tokens: int) -> float:
    """Every removal as it is; gives the layer-tokens."""
    depth = sweep.layer_count(case.model)
    with sweep.open_session(case.model, case.samples, tokens, outputs=False) as session:
        session.sweep(all_units(depth, "layer"), [])
    return session.layer_tokens


def in_the_loop(case: Case, tokens: int) -> float:
    """Every removal repaired, by patches of the other fold; gives the layer-tokens."""
    units = all_units(sweep.layer_count(case.model), "layer")
    wanted, observed = plan_sweep(Candidate(), units)
    sources = [Source([sample.sequence() for sample in case.samples])]
    with counted(case) as passes:
        repairs = looped.fit_loop_patches(case.model, sources, wanted.values(), Ghost(), 0)
    with sweep.open_session(case.model, case.samples, tokens, outputs=False) as session:
        looped.Looped(session, repairs).measure(range(len(case.samples)), wanted, observed)
    return session.layer_tokens + sum(passes)


@contextmanager
def counted(case: Case) -> Iterator[list[int]]:
    """While open, the tokens that each layer runs on, padding included."""
    found: list[int] = []

    def count(_: Any, args: tuple[torch.Tensor, ...], __: Any) -> None:
        found.append(args[0].shape[:-1].numel())

    handles = [layer.register_forward_hook(count) for layer in layers_of(case.model)]
    yield found
    for handle in handles:
        handle.remove()


@contextmanager
def solves() -> Iterator[list[float]]:
    """While open, the seconds of each fit."""
    found: list[float] = []
    fit = ghost.fit

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        fitted = fit(*arguments)
        found.append(time.process_time() - began)
        return fitted

    ghost.fit = timed
    yield found
    ghost.fit = fit


def measure(case: Case, tokens: int, repeats: int) -> dict[str, Any]:
    """Median, lowest and highest ratio of the times, and the ratio of the layer-tokens."""
    ways: dict[str, Callable[[Case, int], float]] = {"plain": plain, "loop": in_the_loop}
    counts, ratios, solving = {}, [], []
    for turn in range(repeats + 1):
        spent = {}
        for name, way in ways.items():
            with solves() as fits:
                began = time.process_time()
                counts[name] = way(case, tokens)
                spent[name] = time.process_time() - began - sum(fits)
        if turn:  # the first is a warm-up
            ratios.append(spent["loop"] / spent["plain"])
            solving.append(sum(fits) / spent["plain"])
    found = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    found |= {
        "solves": statistics.median(solving),
        "layer_tokens": counts["loop"] / counts["plain"],
    }
    sizes = {
        "case": case.name,
        "samples": len(case.samples),
        "layers": sweep.layer_count(case.model),
    }
    return sizes | {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokens", type=int, default=16384, help="budget of one pass, for both ways"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("cases", nargs="*", help="names; all if none are given")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for case in cases(args.cases):
        print(json.dumps(measure(case, args.tokens, args.repeats)), flush=True)
