"""Every family × what is removed × dtype: the cut model comes back whole in a fresh process.

That the cut model is right, and generates, is tried on every type (trials.py). The exports of all cells are read by
one interpreter that cannot import lamina.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from lamina.healing import lora
from lamina.healing.lora import Lora
from lamina.models.boundary import Patch
from lamina.models.export import save
from lamina.models.materialise import materialise
from tests import ROOT
from tests.families.trials import plan_of
from tests.families.trials import source as source_of
from tests.given import tiny

# In one worker, so that the matrix is built once.
pytestmark = pytest.mark.xdist_group("families")

DEPTH = 6
UNITS = {
    **{"layer": ["4", "1"], "attention": ["0.attention", "3.attention"], "mlp": ["3.mlp", "0.mlp"]},
    # Two runs, one of which reaches the final norm.
    "ghost": ["2", "3", "5"],
    "healed": ["1", "4"],
    # Halves left out instead of written as zeros.
    "code": ["0.attention", "3.mlp", "4.attention"],
}
RUNS = {"ghost": [(2, 4), (5, 6)]}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# In bfloat16 what has arithmetic of its own: a patch and a merged adapter. Weights are copied alike in every type.
CELLS = [
    (family, kind, dtype)
    for family in tiny.FAMILIES
    for kind in UNITS
    for dtype in DTYPES
    if (dtype == "float32" or kind in ("ghost", "healed"))
    # Adapters of experts that are stacked in one parameter: test_lora_experts.py.
    and (family, kind) != ("mixtral", "healed")
]

IDS = tiny.tokens(rows=2, length=10, seed=3)


@dataclass
class Cell:
    """What this process knows of one cell; `fresh` is what the other process found."""

    logits: torch.Tensor
    tokens: torch.Tensor
    config: dict[str, Any]
    form: str
    parameters: int
    tied: bool
    fresh: dict[str, Any] = field(default_factory=dict)


def random_patch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 32, generator=generator) / 10, torch.randn(32, generator=generator)


def random_adapter(base: PreTrainedModel, units: list[str], folder: Path) -> None:
    """An adapter as a healing leaves it, with random weights."""
    healed = lora.prepare_training(materialise(base, {"units": units}), Lora(rank=2, alpha=4.0))
    generator = torch.Generator().manual_seed(0)
    for parameter in healed.weights.values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    lora.save(healed, folder)


def base_folder(folder: Path) -> Path:
    """A model folder's other files: tokenizer and card."""
    tiny.tokenizer().save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# Words\n")
    (folder / "LICENSE").write_text("a licence\n")
    return folder


@torch.no_grad()
def make(cell: tuple[str, str, str], base_files: Path, folder: Path) -> Cell:
    """Build a cell's variant, and export it to `folder`."""
    family, kind, dtype = cell
    base, units = tiny.model(family, depth=DEPTH), UNITS[kind]
    for parameter in base.parameters():
        # As from_pretrained does it: rotary frequencies and their like stay in float32.
        parameter.data = parameter.data.to(DTYPES[dtype])
    fitted = {start: random_patch(start) for start, _ in RUNS.get(kind, [])}
    patches = {(start, end): Patch(*fitted[start]) for start, end in RUNS.get(kind, [])} or None
    adapter = None
    if kind == "healed":
        adapter = folder.with_name(f"{folder.name}-adapter")
        random_adapter(base, units, adapter)
    variant = materialise(base, plan_of(units), patches, adapter)
    settings: dict[str, Any] = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False}
    settings["attention_mask"] = torch.ones_like(IDS[:1])
    tokens = variant.generate(IDS[:1], **settings)
    methods = {"repair": "ghost" if patches else "none", "healing": "lora" if adapter else "none"}
    told: dict[str, Any] = {"form": "code" if kind == "code" else "auto", "max_shard_size": "20KB"}
    form = save.export_variant(
        base, source_of(base_files, units, **methods), folder, patches, adapter, **told
    )
    return Cell(
        logits=variant(input_ids=IDS, use_cache=False).logits,
        tokens=tokens,
        config=variant.config.to_dict(),
        form=form,
        parameters=sum(parameter.numel() for parameter in variant.parameters()),
        tied=base.get_input_embeddings().weight is base.get_output_embeddings().weight,
    )


def in_fresh_process(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What fresh_process.py finds, started away from the project and without its path."""
    (folder / "job.json").write_text(json.dumps(job))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    script = ROOT / "tests/given/fresh_process.py"
    command, told = (
        [sys.executable, "-W", "ignore", str(script), "job.json", "found.pt"],
        {"stdin": subprocess.DEVNULL},
    )
    done = subprocess.run(
        command, cwd=folder, env=environment, **told, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "found.pt", weights_only=False)


@pytest.fixture(scope="module")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[Any, Cell]:
    """All cells that the selected tests ask for, each also loaded in the one fresh process."""
    folder = tmp_path_factory.mktemp("families")
    params = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.fspath == request.fspath
    ]
    wanted = sorted({spec.params["cell"] for spec in params if spec and "cell" in spec.params})
    base_files = base_folder(folder / "base")
    cells = {cell: make(cell, base_files, folder / "-".join(cell)) for cell in wanted}
    exports: list[dict[str, Any]] = []
    for cell, made in cells.items():
        place = {"name": "-".join(cell), "folder": str(folder / "-".join(cell)), "form": made.form}
        exports.append(
            place | {"generate": cell[2] == "float32", "class": type(tiny.model(cell[0])).__name__}
        )
    tokenizers = [
        entry["folder"] for form in ("stock", "code") for entry in exports if entry["form"] == form
    ][::60]
    found = in_fresh_process(
        {"ids": IDS.tolist(), "exports": exports, "tokenizers": tokenizers}, folder
    )
    assert "No module named 'lamina'" in found["lamina"]
    assert all(
        ids == tiny.tokenizer()("w1 w2 w59")["input_ids"] for ids in found.get("tokenizers", [])
    )
    for cell, made in cells.items():
        made.fresh = found["-".join(cell)]
    return cells


EVERY_DAY = [cell for cell in CELLS if cell[0] in ("bloom", "gemma2", "gpt2", "llama")]
WITH_CODE = [cell for cell in CELLS if cell[1] in ("ghost", "code")]


def each_alone(cells: list[Any]) -> list[Any]:
    """One parameter for each cell; those of most families are slow."""
    return [
        pytest.param(cell, marks=[] if cell in EVERY_DAY else [pytest.mark.slow]) for cell in cells
    ]


every_cell = pytest.mark.parametrize("cell", each_alone(CELLS), ids="-".join)


def assert_close(found: torch.Tensor, wanted: torch.Tensor, relative: float) -> None:
    """The largest difference is at most `relative` of the largest value."""
    assert torch.isfinite(found).all()
    difference = float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())
    assert difference <= relative, f"relative difference {difference:.2e}"


@every_cell
def test_an_export_gives_the_same_logits_in_a_process_without_lamina(
    cell: Any, matrix: dict[Any, Cell]
) -> None:
    made = matrix[cell]
    assert made.form == ("code" if cell[1] in ("ghost", "code") else "stock")
    assert made.fresh["dtype"] == DTYPES[cell[2]]
    assert_close(made.fresh["logits"], made.logits, 1e-6)
    assert torch.equal(made.fresh["resaved logits"], made.fresh["logits"])
    assert made.fresh["tied"] == made.tied
    if cell[2] == "float32":
        assert torch.equal(made.fresh["tokens"], made.tokens)
    if cell[1] not in ("attention", "mlp"):
        assert made.fresh["parameters"] == made.parameters


@every_cell
def test_the_configuration_survives_saving_and_loading(cell: Any, matrix: dict[Any, Cell]) -> None:
    made = matrix[cell]
    place = (
        "_name_or_path",
        "transformers_version",
        "architectures",
        "dtype",
        "auto_map",
        "model_type",
        "lamina",
    )
    saved = {key: value for key, value in made.fresh["config"].items() if key not in place}
    heads = "n_head" if "n_head" in saved else "num_attention_heads"
    if made.form == "code":
        assert "trust_remote_code=True" in saved[heads]
        assert made.fresh["config"]["model_type"] == f"lamina_{made.config['model_type']}"
        saved[heads] = made.config[heads]
    assert saved == {key: value for key, value in made.config.items() if key not in place}
    again = {
        key: value for key, value in made.fresh["resaved config"].items() if key != "_name_or_path"
    }
    assert again == {
        key: value for key, value in made.fresh["config"].items() if key != "_name_or_path"
    }


@pytest.mark.parametrize("cell", each_alone(WITH_CODE), ids="-".join)
def test_a_plain_load_refuses_and_says_what_to_do(cell: Any, matrix: dict[Any, Cell]) -> None:
    for way in ("without trust", "by default", "by the stock class"):
        assert "trust_remote_code=True" in matrix[cell].fresh[way], way
