"""The configurations that lamina ships, and the README that explains them, keep up with the schema."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lamina.config import load as config
from lamina.errors import LaminaError
from tests.unit.configurations import REPOSITORY, Raw, model_folder, put

SHIPPED: dict[str, Callable[[Raw, Path], Raw]] = {
    "config/config.yaml": lambda raw, folder: put(raw, "models.reference.source", str(folder / "m12")),
    "tests/configs/tiny.yaml": lambda raw, folder: put(raw, "models.reference.source", str(folder / "m12")),
    "config/llama3-8b.yaml": lambda raw, folder: raw,
    "config/tinystories.yaml": lambda raw, folder: put(
        put(
            put(raw, "models.stories.source", str(folder / "m5")),
            "calibrations.stories.text",
            str(folder / "text.json"),
        ),
        "benchmarks.perplexity.heldout.text",
        str(folder / "text.json"),
    ),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_configurations_load(name: str, tmp_path: Path) -> None:
    model_folder(tmp_path / "m12", {"num_hidden_layers": 12})
    model_folder(tmp_path / "m5", {"num_hidden_layers": 5})
    (tmp_path / "text.json").write_text("[]")
    raw = yaml.safe_load((REPOSITORY / name).read_text(encoding="utf-8"))
    loaded = config.load(SHIPPED[name](raw, tmp_path), REPOSITORY)
    for kind in ("calibrations", "selectors", "recoveries", "healings"):
        used = {entry for study in loaded.studies.values() for entry in getattr(study, kind, [])}
        assert set(getattr(loaded, kind)) <= used, f"{name} defines {kind} that no study uses"


def test_the_shipped_configurations_are_all_tested() -> None:
    found = {f"config/{path.name}" for path in (REPOSITORY / "config").glob("*.yaml")}
    assert found - {"config/reference.yaml"} <= set(SHIPPED)


def test_the_shipped_template_says_what_to_replace() -> None:
    raw = yaml.safe_load((REPOSITORY / "config/tinystories.yaml").read_text(encoding="utf-8"))
    with pytest.raises(LaminaError) as caught:
        config.load(raw, REPOSITORY)
    message = str(caught.value)
    assert "models.stories.source: there is no folder 'models/stories260K-llama'" in message
