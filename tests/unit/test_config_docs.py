"""The configurations that lamina ships, and the README that explains them, keep up with the schema."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lamina.config import load as config
from lamina.config.schema import allowed, schema
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
        used = {entry for study in loaded["studies"].values() for entry in study.get(kind, [])}
        assert set(loaded[kind]) <= used, f"{name} defines {kind} that no study uses"


def test_the_shipped_configurations_are_all_tested() -> None:
    found = {f"config/{path.name}" for path in (REPOSITORY / "config").glob("*.yaml")}
    assert found - {"config/reference.yaml"} <= set(SHIPPED)


def test_the_shipped_template_says_what_to_replace() -> None:
    raw = yaml.safe_load((REPOSITORY / "config/tinystories.yaml").read_text(encoding="utf-8"))
    with pytest.raises(LaminaError) as caught:
        config.load(raw, REPOSITORY)
    message = str(caught.value)
    assert "models.stories.source: there is no folder 'models/stories260K-llama'" in message


def _definition(name: str) -> Raw:
    part: Raw = schema()["$defs"][name]
    return part


SECTIONS = {
    "Sections": schema(),
    "models.NAME": _definition("model"),
    "calibrations.NAME with `task`": _definition("calibration_task"),
    "calibrations.NAME with `tasks`": _definition("calibration_tasks"),
    "calibrations.NAME with `text`": _definition("calibration_text"),
    "calibrations.NAME with `choices`": _definition("calibration_choices"),
    "selectors.NAME": _definition("selector"),
    "recoveries.NAME": _definition("recovery"),
    "healings.NAME": _definition("healing"),
    "benchmarks": schema()["properties"]["benchmarks"],
    "benchmarks.tasks.NAME": _definition("benchmark_task"),
    "benchmarks.perplexity.NAME": _definition("benchmark_perplexity"),
    "benchmarks.efficiency": _definition("benchmark_efficiency"),
    "sweep": schema()["properties"]["sweep"],
    "benchmark": schema()["properties"]["benchmark"],
    "studies.NAME, maps": _definition("study_maps"),
    "studies.NAME, pruning": _definition("study_prune"),
}


def table_rows(part: Raw) -> list[str]:
    """The rows that config/README.md must hold for one section of the schema."""
    rows = []
    for key, rule in part["properties"].items():
        if key in part.get("required", ()):
            default = "*needed*"
        elif "default" in rule:
            default = (
                f"`{json.dumps(rule['default'])}`" if not isinstance(rule["default"], str) else f"`{rule['default']}`"
            )
        else:
            default = "top-level `seed`"
        kind = "see below" if rule.get("type") == "object" or "oneOf" in rule else allowed(rule)
        rows.append(f"| `{key}` | {kind} | {default} | {rule['description']} |")
    return rows


def test_the_readme_explains_every_key_as_the_schema_does() -> None:
    text = (REPOSITORY / "config/README.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    written = {
        title: [line for line in body.splitlines() if line.startswith("| `")]
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    assert written == {title: table_rows(part) for title, part in SECTIONS.items()}


def test_no_part_of_the_schema_is_left_out_of_the_readme() -> None:
    wrappers = {"calibration", "study"}
    documented = [id(part) for part in SECTIONS.values()]
    assert all(id(part) in documented for name, part in schema()["$defs"].items() if name not in wrappers)


def test_every_object_of_the_schema_is_closed() -> None:
    def objects(part: Any) -> list[Raw]:
        if isinstance(part, list):
            return [found for item in part for found in objects(item)]
        if not isinstance(part, dict):
            return []
        own = [part] if part.get("type") == "object" else []
        return own + [found for item in part.values() for found in objects(item)]

    for part in objects(schema()):
        assert part.get("additionalProperties") is not None, part
        assert part["additionalProperties"] is not True, part
