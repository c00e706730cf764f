"""How much shorter benchmarks are where one pass of the engine measures many variants.

    python benchmarks/together.py MODEL QUESTIONS TEXTS --limit 40
    python benchmarks/together.py MODEL QUESTIONS TEXTS --json

MODEL is a checkpoint, QUESTIONS a file of `query`, `choices` and `gold`, TEXTS one of `text`. Ten variants are measured
on both: the unpruned model, and three plans of a quarter of its layers (block, spread, random), each bare and with two
linear maps at its boundaries. The maps are random: what is compared is time. `counted` is the ratio of tokens times
layers, padding left out; `measured` that of seconds in this process, alone and together in turn.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lamina.data.lm_tasks import task_object
from lamina.engine import packing
from lamina.engine.candidates import grow_tree
from lamina.evaluation import perplexity
from lamina.evaluation.assembly import Parts
from lamina.evaluation.tasks import TaskBenchmark
from lamina.evaluation.together import Together, candidate_of, pack_shared_rows
from lamina.models.materialise import materialise
from lamina.models.structure import layers_of
from lamina.models.surgery import find_runs
from lamina.repairs.protocol import Fitted
from lamina_workflow.cost.work import Tokens


def variants(depth: int, channels: int) -> dict[str, Parts]:
    """The unpruned model, and three plans with no and two repairs each."""
    count, rng = depth // 4, torch.Generator().manual_seed(0)
    plans = {
        "block": range(depth - count - 2, depth - 2),
        "spread": range(2, 2 + 3 * count, 3),
        "random": sorted(random.Random(0).sample(range(2, depth - 1), count)),
    }
    found = {"base": Parts(None, None, None)}
    for name, layers in plans.items():
        plan = {"units": [str(layer) for layer in layers]}
        found[name] = Parts(plan, None, None)
        for repair in ("one", "other"):
            patches = {
                boundary: Fitted(
                    "ghost", {"operator": torch.randn(channels, channels, generator=rng) / 1000}
                )
                for boundary in find_runs(plan["units"], depth)
            }
            found[f"{name} {repair}"] = Parts(plan, patches, None)
    return found


def counted(model: Any, rows: list[Any], parts: dict[str, Parts]) -> float:
    """Tokens times layers of all variants one by one, by those of the pass."""
    depth = len(layers_of(model))
    candidates = [found for each in parts.values() if (found := candidate_of(model, each))]
    alone = sum(len(context) + len(ending) - 1 for context, ending in rows)
    alone *= sum(depth - len(each.plan["units"] if each.plan else ()) for each in parts.values())
    lines = [
        line
        for number, sample in enumerate(pack_shared_rows(rows))
        for line in packing.pack_sample(number, sample)
    ]
    packed = Tokens(len(rows), sum(len(line.tokens) for line in lines), 0, 0).packed
    return alone / (packed * grow_tree(candidates, [], depth, True).layers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("questions")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--limit", type=int, default=40, help="questions; half as many texts")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        args.model, use_safetensors=True, dtype=torch.float32
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    parts = variants(len(layers_of(model)), model.config.get_text_config().hidden_size)
    built = {
        name: materialise(model, each.plan, each.patches, None) for name, each in parts.items()
    }
    task = TaskBenchmark(
        task_object("mine", Path.cwd(), 0, args.questions), model, tokenizer, args.limit
    )
    texts = [
        json.loads(line)["text"] for line in args.texts.read_text().splitlines()[: args.limit // 2]
    ]
    cut = perplexity.split_windows(texts, tokenizer, 512)

    def scored(name: str, pass_: Together | None) -> list[float]:
        found = task.score(built[name], name, pass_).samples
        return [sample["value"] for sample in found]

    def read(name: str, pass_: Together | None) -> list[float]:
        losses = perplexity.document_nll(built[name], cut, len(texts), name, pass_)
        return [loss for loss, _ in losses]

    found: dict[str, dict[str, float]] = {}
    for kind, measure in (("choices", scored), ("texts", read)):
        seconds: dict[str, list[float]] = {"alone": [], "together": []}
        measure("base", None)
        for _ in range(args.repeats):
            numbers = {}
            for how in seconds:
                candidates = {name: candidate_of(model, each) for name, each in parts.items()}
                pass_ = (
                    Together(model, {n: c for n, c in candidates.items() if c})
                    if how == "together"
                    else None
                )
                start = time.perf_counter()
                numbers[how] = [number for name in parts for number in measure(name, pass_)]
                seconds[how].append(time.perf_counter() - start)
        pairs = list(zip(numbers["alone"], numbers["together"], strict=True))
        apart = max(abs(one - other) / max(1, abs(one)) for one, other in pairs)
        if kind == "texts":
            rows = [
                (window.tokens[: window.first], window.tokens[window.first :]) for window in cut
            ]
        else:
            rows = [
                (tuple(before), tuple(after))
                for _, before, after in next(iter(task.lm._encoded_lists.values()))
            ]
        middle = {how: statistics.median(each) for how, each in seconds.items()}
        found[kind] = {
            "counted": counted(model, rows, parts),
            "measured": middle["alone"] / middle["together"],
        }
        found[kind] |= middle | {"apart": apart}
    if args.json:
        print(json.dumps(found))
        return
    for kind, numbers_of in found.items():
        print(kind, *(f"{name} {value:.3g}" for name, value in numbers_of.items()), sep="  ")


if __name__ == "__main__":
    main()
