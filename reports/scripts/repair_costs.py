"""What a repaired model costs to run, counted: parameters and the arithmetic of a prompt and of one more token.

Counts are exact and the same on every machine, as times of a small model are not. What a variant costs follows from its
repair and the numbers of removed layers and of their runs, so one variant of each is built, on a few samples.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import repair_tables
import torch
from repair_cases import Case
from repair_variants import Variants
from torch.utils.flop_counter import FlopCounterMode

from lamina.evaluation.efficiency import sizes
from lamina.models.materialise import materialise
from lamina.models.surgery import removed_layers, runs
from lamina.tables import store

PROMPT, SAMPLES = 48, 16


def count(case: Case, folder: Path) -> None:
    """Write the costs of all variants in a folder, relative to the unpruned model."""
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in store.read(path).to_pylist()]
    plans = {repair_tables.cost_key(row): row["units"] for row in rows if row["refused"] is None}
    every_run = {run for units in plans.values() for run in runs(removed_layers(units), case.depth)}
    small = replace(case, calibration=case.calibration[:SAMPLES], general=case.general[:SAMPLES])
    variants, base = Variants(small, sorted(every_run)), counted(materialise(case.model, None))
    found = []
    for (repair, removed, n_runs), units in sorted(plans.items()):
        model = variants.model(units, repair) if units else case.model
        ratios = {name: value / base[name] for name, value in counted(model).items()}
        found.append({"repair": repair, "removed": removed, "runs": n_runs, **ratios})
    (folder / repair_tables.COSTS).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def counted(model: Any) -> dict[str, int]:
    """Parameters, and floating-point operations of the matrix products of a prompt and of the token behind it."""
    # The fused attention of a CPU is not counted, the plain one is.
    model.set_attn_implementation("eager")
    prompt = torch.zeros(1, PROMPT, dtype=torch.long, device=model.device)
    with FlopCounterMode(display=False) as prefill:
        cache = model(input_ids=prompt, use_cache=True, logits_to_keep=1).past_key_values
    with FlopCounterMode(display=False) as decode:
        model(input_ids=prompt[:, :1], past_key_values=cache, use_cache=True)
    return {
        "parameters": sizes(model)["parameters"],
        "prefill": prefill.get_total_flops(),
        "decode": decode.get_total_flops(),
    }
