"""Every family × what is removed × dtype: the cut model comes back whole in a fresh process.

That the cut model is right, and generates, is tried on every type (trials.py). The exports of all
cells are read by one interpreter that cannot import lamina.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lamina.models.export import save
from lamina.models.materialise import materialise
from tests import ROOT
from tests.given import tiny
from tests.given.variants import (
    base_folder,
    compute_logits,
    plan_of,
    random_adapter,
    random_patch,
    source_of,
)

# In one worker, so that the matrix is built once.
pytestmark = pytest.mark.xdist_group("families")

DEPTH = 6
UNITS = {
    "layer": ["4", "1"],
    "attention": ["0.attention", "3.attention"],
    "mlp": ["3.mlp", "0.mlp"],
    # Two runs, one of which reaches the final norm.
    "ghost": ["2", "3", "5"],
    "healed": ["1", "4"],
    # Sub-layers left out instead of written as zeros.
    "code": ["0.attention", "3.mlp", "4.attention"],
}
PATCHED_BOUNDARIES = [(2, 4), (5, 6)]  # of `ghost`
KINDS_WITH_CODE = ("ghost", "code")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKEN_IDS = tiny.tokens(rows=2, length=10, seed=3)
GENERATION = {
    "attention_mask": torch.ones_like(TOKEN_IDS[:1]),
    "max_new_tokens": 32,
    "min_new_tokens": 32,
    "do_sample": False,
}


class Cell(NamedTuple):
    """One variant: the family of its base, a kind of `UNITS`, and a dtype."""

    family: str
    kind: str
    dtype: str


def list_cells() -> list[Cell]:
    cells: list[Cell] = []
    for family in tiny.FAMILIES:
        for kind in UNITS:
            # Adapters of experts that are stacked in one parameter: test_lora_experts.py.
            if (family, kind) == ("mixtral", "healed"):
                continue
            cells.append(Cell(family, kind, "float32"))
            # What has arithmetic of its own. Weights are copied alike in every dtype.
            if kind in ("ghost", "healed"):
                cells.append(Cell(family, kind, "bfloat16"))
    return cells


CELLS = list_cells()
CELLS_WITH_CODE = [cell for cell in CELLS if cell.kind in KINDS_WITH_CODE]
FAMILIES_OF_EVERY_DAY = ("gemma2", "gpt2")


def mark_slow(cells: list[Cell]) -> list[Any]:
    """One parameter for each cell; those of most families are slow."""
    params: list[Any] = []
    for cell in cells:
        marks = [] if cell.family in FAMILIES_OF_EVERY_DAY else [pytest.mark.slow]
        params.append(pytest.param(cell, marks=marks, id="-".join(cell)))
    return params


@dataclass
class Exported:
    """What this process knows of the export of one cell, and what the fresh process found."""

    folder: Path
    form: str
    logits: torch.Tensor
    tokens: torch.Tensor
    config: dict[str, Any]
    n_parameters: int
    is_tied: bool
    fresh: dict[str, Any] = field(default_factory=dict)


@torch.no_grad()
def export_cell(cell: Cell, base_files: Path, folder: Path) -> Exported:
    """Build a cell's variant, and export it to `folder`."""
    base = tiny.model(cell.family, depth=DEPTH)
    units = UNITS[cell.kind]
    for parameter in base.parameters():
        # As from_pretrained does it: rotary frequencies and their like stay in float32.
        parameter.data = parameter.data.to(DTYPES[cell.dtype])

    patches = None
    if cell.kind == "ghost":
        patches = {boundary: random_patch(seed=boundary[0]) for boundary in PATCHED_BOUNDARIES}
    adapter = None
    if cell.kind == "healed":
        adapter = folder.with_name(f"{folder.name}-adapter")
        random_adapter(base, units, adapter)

    variant = materialise(base, plan_of(units), patches, adapter)
    repair = "ghost" if patches else "none"
    healing = "lora" if adapter else "none"
    source = source_of(base_files, units, repair=repair, healing=healing)
    requested_form = "code" if cell.kind == "code" else "auto"
    form = save.export_variant(
        base, source, folder, patches, adapter, requested_form, max_shard_size="20KB"
    )
    return Exported(
        folder=folder,
        form=form,
        logits=compute_logits(variant, TOKEN_IDS),
        tokens=variant.generate(TOKEN_IDS[:1], **GENERATION),
        config=variant.config.to_dict(),
        n_parameters=sum(parameter.numel() for parameter in variant.parameters()),
        is_tied=base.get_input_embeddings().weight is base.get_output_embeddings().weight,
    )


def run_fresh_process(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What fresh_process.py finds, started away from the project and without its path."""
    (folder / "job.json").write_text(json.dumps(job))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["HF_MODULES_CACHE"] = str(folder / "modules")
    environment["HF_HUB_OFFLINE"] = "1"
    script = str(ROOT / "tests/given/fresh_process.py")
    process = subprocess.run(
        [sys.executable, "-W", "ignore", script, "job.json", "found.pt"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return torch.load(folder / "found.pt", weights_only=False)


def requested_cells(request: pytest.FixtureRequest) -> list[Cell]:
    """The cells that the selected tests of this file ask for."""
    cells: set[Cell] = set()
    for item in request.session.items:
        parameters = getattr(item, "callspec", None)
        if item.path == request.path and parameters and "cell" in parameters.params:
            cells.add(parameters.params["cell"])
    return sorted(cells)


@pytest.fixture(scope="module")
def exports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Cell, Exported]:
    """The exports of all requested cells, each also loaded in the one fresh process."""
    folder = tmp_path_factory.mktemp("families")
    base_files = base_folder(folder / "base")
    exports: dict[Cell, Exported] = {}
    entries: list[dict[str, Any]] = []
    tokenizer_folders: dict[str, str] = {}
    for cell in requested_cells(request):
        name = "-".join(cell)
        exported = export_cell(cell, base_files, folder / name)
        exports[cell] = exported
        entry = {
            "name": name,
            "folder": str(exported.folder),
            "form": exported.form,
            "generate": cell.dtype == "float32",
            "class": type(tiny.model(cell.family)).__name__,
        }
        entries.append(entry)
        tokenizer_folders[exported.form] = str(exported.folder)

    job = {
        "ids": TOKEN_IDS.tolist(),
        "exports": entries,
        "tokenizers": list(tokenizer_folders.values()),
    }
    fresh = run_fresh_process(job, folder)
    assert "No module named 'lamina'" in fresh["lamina"]
    expected_ids = tiny.tokenizer()("w1 w2 w59")["input_ids"]
    for token_ids in fresh["tokenizers"]:
        assert token_ids == expected_ids
    for cell, exported in exports.items():
        exported.fresh = fresh["-".join(cell)]
    return exports


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_an_export_is_the_same_model_in_a_process_without_lamina(
    cell: Cell, exports: dict[Cell, Exported]
) -> None:
    exported = exports[cell]
    fresh = exported.fresh
    assert exported.form == ("code" if cell.kind in KINDS_WITH_CODE else "stock")
    assert fresh["dtype"] == DTYPES[cell.dtype]
    assert fresh["tied"] == exported.is_tied
    tolerance = 1e-6 * float(exported.logits.abs().max())
    torch.testing.assert_close(fresh["logits"], exported.logits, rtol=0, atol=tolerance)
    assert torch.equal(fresh["resaved logits"], fresh["logits"])
    if cell.dtype == "float32":
        assert torch.equal(fresh["tokens"], exported.tokens)
    if cell.kind not in ("attention", "mlp"):  # whose removed weights are written as zeros
        assert fresh["parameters"] == exported.n_parameters


# What a folder says of itself.
OWN_SETTINGS = {
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "lamina",
    "model_type",
    "transformers_version",
}


def drop_settings(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize("cell", mark_slow(CELLS))
def test_the_configuration_survives_saving_and_loading(
    cell: Cell, exports: dict[Cell, Exported]
) -> None:
    exported = exports[cell]
    fresh_config = exported.fresh["config"]
    fresh_settings = drop_settings(fresh_config, OWN_SETTINGS)
    expected_settings = drop_settings(exported.config, OWN_SETTINGS)
    if exported.form == "code":
        # A plain load ends at the number of heads, which says what to do.
        n_heads = "n_head" if "n_head" in expected_settings else "num_attention_heads"
        assert "trust_remote_code=True" in fresh_settings[n_heads]
        assert fresh_config["model_type"] == f"lamina_{exported.config['model_type']}"
        del fresh_settings[n_heads]
        del expected_settings[n_heads]
    assert fresh_settings == expected_settings

    resaved_config = drop_settings(exported.fresh["resaved config"], {"_name_or_path"})
    assert resaved_config == drop_settings(fresh_config, {"_name_or_path"})


@pytest.mark.parametrize("cell", mark_slow(CELLS_WITH_CODE))
@pytest.mark.parametrize("load", ["without trust", "by default", "by the stock class"])
def test_a_plain_load_of_an_export_with_code_says_what_to_do(
    cell: Cell, load: str, exports: dict[Cell, Exported]
) -> None:
    assert "trust_remote_code=True" in exports[cell].fresh[load]
