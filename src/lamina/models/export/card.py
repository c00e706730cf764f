"""What an export says about itself: its model card, README.md.

Each function below writes one section from `Facts`, which `lamina.models.export.save` collects.
Nothing here looks at a model or a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from lamina.models.cutting import shifts_kinds
from lamina.models.export.gguf_file import FILE
from lamina.models.gguf import is_gguf
from lamina.models.surgery import units_of
from lamina.models.units import donor_of, parse_unit
from lamina.options.selectors import Selector
from lamina.variant import Variant
from lamina.version import VERSION

ONWARD = "## Where to go from here"
# Metadata of the base model's card that holds for its descendants too.
INHERITED_METADATA = ("license", "license_name", "license_link", "extra_gated_prompt", "language")
UNIT_NAMES = {
    "layer": "layer",
    "attention": "attention sub-layer",
    "mlp": "MLP sub-layer",
    "both": "sub-layer",
}
# Decoders whose windows, positions and experts vLLM 0.33 takes from lists and counts (see
# reports/runtimes.md).
VLLM_LISTS = frozenset(
    "afmoe apertus cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 exaone4 exaone_moe gemma2 "
    "gemma3_text gemma4_text gemma4_unified_text glm4_moe granite_swa granitemoe_swa "
    "granitemoehybrid laguna lfm2 lfm2_moe llama ministral3 mistral nemotron_h olmo3 olmo_hybrid "
    "qwen2_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next smollm3 vaultgemma".split()
)
EMPTY_CELL = "–"


@dataclass(frozen=True)
class BaseSource:
    """What a variant is made of, as files and tables describe it."""

    variant: Variant
    """Its names in the configuration."""
    manifest: Mapping[str, Any]
    """Of the base model: path, source, revision, dtype, …"""
    plan: Mapping[str, Any]
    """As JSON gives it."""
    benchmarks: Sequence[Mapping[str, Any]] = ()
    """Rows of table `benchmarks`, of this variant and of the base model."""


@dataclass(frozen=True, kw_only=True)
class Facts(BaseSource):
    """Everything that a card says."""

    form: str
    """`stock`, `code` or `gguf`."""
    n_base_parameters: int
    n_parameters: int
    """Of the export."""
    removed_runs: Sequence[tuple[float, float]]
    """Runs of removed units as boundaries (start, end) of the base model, the end exclusive."""
    has_patches: bool
    """Whether the export applies a patch after each of these runs."""
    has_zeroed_sublayers: bool
    """Whether removed sub-layers are still there as zero weights."""
    base_metadata: Mapping[str, Any]
    """The metadata block of the base model's card."""
    has_lookahead_heads: bool
    """Whether the base model has heads for tokens further ahead, which no export holds."""
    base_class: str
    """The class of transformers that loads the base model."""
    vllm_obstacle: str
    """Why vLLM cannot run the code of the export; empty if it can."""
    family: str
    """Of the decoder, as config.json names it."""
    kept_layers: Sequence[int]
    """The layers that stay, in base numbering."""
    layer_kinds: Sequence[int]
    """Of the base model's layers, as `lamina.models.cutting.kinds_by_layer` tells them apart."""
    base_gguf_bytes: int | None
    """Bytes of the GGUF file that is the base model; None if it is not one."""
    weights_bytes: int
    """Of the export."""

    @property
    def is_bare_cut(self) -> bool:
        """Whether whole layers were removed and nothing else was changed."""
        is_unrepaired = self.variant.repair == self.variant.healing == "none"
        return is_unrepaired and self.plan["kind"] == "layer" and not self.donor_by_layer

    @property
    def donor_by_layer(self) -> dict[int, str]:
        """The names of the donors whose layers replace the base model's, by layer."""
        donor_by_layer: dict[int, str] = {}
        for unit in self.plan["units"]:
            donor = donor_of(unit)
            if donor:
                donor_by_layer[parse_unit(unit)[0]] = donor
        return donor_by_layer


class Command(NamedTuple):
    """A command line for a program that reads the export."""

    purpose: str
    line: str


def render_card(facts: Facts) -> str:
    """The README.md of an export: a Hugging Face model card."""
    sections = [
        _write_metadata(facts),
        _write_summary(facts),
        _write_loading(facts),
        _write_next_steps(facts),
        _write_removal(facts),
        _write_donors(facts),
        _write_repairs(facts),
        _write_benchmarks(facts),
        _write_licence(facts),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _write_metadata(facts: Facts) -> str:
    """The YAML block at the head of the card."""
    metadata: dict[str, Any] = {
        key: facts.base_metadata[key] for key in INHERITED_METADATA if key in facts.base_metadata
    }
    metadata["library_name"] = "gguf" if facts.form == "gguf" else "transformers"
    metadata["pipeline_tag"] = "text-generation"
    metadata["tags"] = ["lamina", "pruned"]
    if facts.form == "code":
        metadata["tags"].append("custom_code")
    if facts.manifest.get("revision"):
        metadata["base_model"] = str(facts.manifest["source"])

    block = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).strip()
    return f"---\n{block}\n---"


def _write_summary(facts: Facts) -> str:
    """The title, what the export is, and how large."""
    base_name = _public_name(facts.manifest)
    n_removed = sum(not donor_of(unit) for unit in facts.plan["units"])
    unit_name = UNIT_NAMES[facts.plan["kind"]]
    if n_removed != 1:
        unit_name += "s"
    revision = facts.manifest.get("revision")
    revision_note = f", revision `{revision}`" if revision else ""

    text = (
        f"# {base_name} without {n_removed} {unit_name}\n\n"
        f"`{base_name}`{revision_note} with {len(facts.kept_layers)} of its "
        f"{len(facts.layer_kinds)} layers and {facts.n_parameters:,} of its "
        f"{facts.n_base_parameters:,} parameters "
        f"({facts.n_parameters / facts.n_base_parameters:.1%}). "
        f"Made by lamina {VERSION}; the variant is `{facts.variant}`, the base weights have the "
        f"sha256 `{facts.manifest['weights_sha256']}`."
    )
    if facts.has_zeroed_sublayers:
        text += (
            " The removed halves are still there as zero weights, so that stock transformers loads "
            "the checkpoint: it saves neither memory nor time. Export with `FORM=code` to leave "
            "them out."
        )
    if facts.base_gguf_bytes is not None:
        text += _compare_with_gguf(facts, facts.base_gguf_bytes)
    return text


def _compare_with_gguf(facts: Facts, base_gguf_bytes: int) -> str:
    """What the weights take, and what the GGUF file takes that they come from."""
    text = (
        f" The weights take {facts.weights_bytes / 1e6:,.1f} MB, the GGUF file of the base model "
        f"{base_gguf_bytes / 1e6:,.1f} MB."
    )
    if facts.form == "gguf":
        return text + " The tensors that stay have the bits that they have there."

    if facts.manifest["dtype"] in ("auto", "float32"):
        text += " They are stored in float32; `dtype: bfloat16` in the model's entry halves that."
    if facts.is_bare_cut:
        text += (
            f" `make export VARIANT={facts.variant} FORM=gguf` writes a GGUF file with the bits of "
            "the base model's."
        )
    return text


def _write_loading(facts: Facts) -> str:
    heading = "## How to load"
    if facts.form == "gguf":
        return (
            f"{heading}\n\n```\nllama-cli -m FOLDER/{FILE}\n```\n\n"
            "lamina takes the file as the `source` of a model, transformers by "
            f'`{facts.base_class}.from_pretrained("FOLDER", gguf_file="{FILE}")`.'
        )

    model_class = facts.base_class
    trust = ""
    if facts.form == "code":
        model_class = "AutoModelForCausalLM"  # which finds lamina's own code
        trust = ", trust_remote_code=True"
    text = (
        f"{heading}\n\n```python\nfrom transformers import {model_class}, AutoTokenizer\n\n"
        f'model = {model_class}.from_pretrained("FOLDER", dtype="auto"{trust})\n'
        f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})\n```'
    )
    if facts.form == "code":
        text += (
            "\n\nThe code is `modeling_lamina.py` beside this file. Without it the model would "
            "silently lose what it adds, so a plain load is refused. "
            '`lamina.load("FOLDER")` of the same version of lamina needs no flag.'
        )
    return text


def _write_next_steps(facts: Facts) -> str:
    """Commands for other programs that run the same model, and a warning of those that do not."""
    if facts.form == "gguf":
        return ""
    if facts.form == "code":
        return _write_next_steps_with_code(facts)
    if shifts_kinds(facts.layer_kinds, facts.kept_layers):
        return _write_next_steps_of_shifted_kinds(facts)

    commands = [
        Command(
            "As a GGUF, with llama.cpp", "python convert_hf_to_gguf.py FOLDER --outfile model.gguf"
        )
    ]
    # llama-quantize cuts no lists by layer, and counts the heads that predict further ahead as
    # layers of a GGUF.
    is_uniform = len(set(facts.layer_kinds)) == 1 and not facts.has_lookahead_heads
    if facts.is_bare_cut and is_uniform and not is_gguf(facts.manifest["source"]):
        removed_layers = sorted(int(unit) for unit in facts.plan["units"])
        layer_list = ",".join(str(layer) for layer in removed_layers)
        commands.append(
            Command(
                "The same layers dropped from a GGUF of the base model",
                f"llama-quantize --prune-layers {layer_list} base-f16.gguf model-q4_k_m.gguf "
                "q4_k_m",
            )
        )
    commands.append(Command("Served by vLLM, from the path of this folder", "vllm serve FOLDER"))
    return _list_next_steps(commands)


def _write_next_steps_with_code(facts: Facts) -> str:
    if facts.vllm_obstacle:
        return _list_next_steps([], f"Not to vLLM or llama.cpp. {facts.vllm_obstacle}")
    command = Command(
        "Served by vLLM's Transformers backend, which runs the code of this folder (read in its "
        "version 0.33)",
        "vllm serve FOLDER --trust-remote-code",
    )
    return _list_next_steps([command], "Not to llama.cpp, which has no place for patches.")


def _write_next_steps_of_shifted_kinds(facts: Facts) -> str:
    """Programs that tell a layer's kind from its number would run another model."""
    commands: list[Command] = []
    programs = "llama.cpp or vLLM"
    they_place = "They place"
    they = "They"
    if facts.family in VLLM_LISTS:
        command = Command(
            "Served by vLLM from version 0.33, which takes the kinds of layers from config.json",
            "vllm serve FOLDER",
        )
        commands.append(command)
        programs = "llama.cpp"
        they_place = "It places"
        they = "It"

    first_shifted = next(
        position
        for position, layer in enumerate(facts.kept_layers)
        if facts.layer_kinds[layer] != facts.layer_kinds[position]
    )
    warning = (
        f"Not to {programs}. {they_place} sliding windows, RoPE bases and experts by a layer's "
        f"number, and this cut shifts them: layer {first_shifted} is of another kind than layer "
        f"{first_shifted} of the base model. {they} would run another model, and no error would "
        "say so. A selector with `strategy: block` and `periods: whole` makes cuts that keep the "
        "pattern."
    )
    return _list_next_steps(commands, warning)


def _list_next_steps(commands: Sequence[Command], warning: str = "") -> str:
    paragraphs = [ONWARD]
    for command in commands:
        paragraphs.append(f"{command.purpose}:\n\n    {command.line}")
    if warning:
        paragraphs.append(warning)
    return "\n\n".join(paragraphs)


def _write_removal(facts: Facts) -> str:
    """A row per removed unit, in the order of removal, with what was measured of it."""
    plan = facts.plan
    reason = "no measurement"
    if plan["metric"]:
        selector_options = Selector.kind_of(plan["strategy"]) or Selector
        reason = (
            f"metric `{plan['metric']}` on the calibration `{plan['calibration']}`; "
            f"{selector_options.CHOICE}"
        )

    n_units = len(plan["units"])
    rows = [["order", "unit", "score", "calibration accuracy before", "after"]]
    for index, unit in enumerate(plan["units"]):
        row = [str(index + 1), f"`{unit}`"]
        for key in ("scores", "accuracy_before", "accuracy_after"):
            row.append(_format_measurement(plan.get(key), index, n_units))
        rows.append(row)
    return (
        f"## What was removed, and why\n\nSelector `{plan['selector']}`: strategy "
        f"`{plan['strategy']}`, {reason}. Units are numbered as in the base model, from 0.\n\n"
        f"{_format_table(_drop_empty_columns(rows))}"
    )


def _format_measurement(values: Sequence[float | None] | None, index: int, n_units: int) -> str:
    """One of the numbers that a plan has for each of its units, if it has them."""
    if not values or len(values) != n_units:
        return EMPTY_CELL
    value = values[index]
    return EMPTY_CELL if value is None else f"{value:.4g}"


def _drop_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows, of which the first is the head, without the columns where no unit has a number."""
    header, *body = rows
    columns = [0, 1]  # order and unit
    for column in range(2, len(header)):
        if any(row[column] != EMPTY_CELL for row in body):
            columns.append(column)
    return [[row[column] for column in columns] for row in rows]


def _write_donors(facts: Facts) -> str:
    """The donors whose layers replace layers of the base model; empty if there are none."""
    if not facts.donor_by_layer:
        return ""
    donors = facts.plan["replacements"]
    lines = []
    for layer, name in sorted(facts.donor_by_layer.items()):
        origin = "as it is"
        if "of" in donors[name]:
            origin = (
                f"merged: base + {donors[name]['weight']:g} · Σ (donor - base) over "
                f"{', '.join(donors[name]['of'])}"
            )
        lines.append(f"- Layer {layer}: `{name}`, {origin}.")

    for name, donor in donors.items():
        if "of" in donor:
            continue
        revision = f"@{donor['revision']}" if donor.get("revision") else ""
        lines.append(
            f"- `{name}`: `{_public_name(donor)}{revision}`, whose weights have the sha256 "
            f"`{donor['weights_sha256']}`."
        )
    return (
        "## Donors\n\nLayers of other models stand in the places of the base model's, numbered as "
        "there. Their licences hold for this model too.\n\n" + "\n".join(lines)
    )


def _write_repairs(facts: Facts) -> str:
    repair = facts.variant.repair
    healing = facts.variant.healing
    if repair == healing == "none":
        return "## Repairs\n\nNone: no patch and no training after the removal."

    removed_units = ", ".join(_format_run(*run) for run in facts.removed_runs)
    paragraphs = ["## Repairs"]
    if facts.has_patches:
        paragraphs.append(
            f"Patch `{repair}`, fitted without training on the calibration: one linear map of the "
            f"residual stream where layers went ({removed_units})."
        )
    elif repair != "none":
        paragraphs.append(
            f"Repair `{repair}`, fitted on the calibration where layers went ({removed_units}), "
            "and folded into the weights."
        )
    if healing != "none":
        paragraphs.append(
            f"Healing `{healing}`: a short training, merged into the weights and patches it "
            "changed."
        )
    return "\n\n".join(paragraphs)


def _format_run(start: float, end: float) -> str:
    """The first and the last unit of a run, such as `3–5`, or its only one."""
    units = units_of(start, end)
    return units[0] if units[0] == units[-1] else f"{units[0]}–{units[-1]}"


def _write_benchmarks(facts: Facts) -> str:
    """A row per task and metric: this variant against the base model, with standard errors."""
    base_values: dict[tuple[str, str], str] = {}
    variant_rows: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in facts.benchmarks:
        if row.get("part_of"):
            continue
        key = (row["task"], row["metric"])
        if row["removed"] == 0:
            base_values[key] = _format_value(row)
        else:
            variant_rows[key] = row
    if not variant_rows:
        return "## Benchmarks\n\nNone were measured on this variant."

    rows = [["task", "metric", "better", "base model", "this model", "samples", "shots"]]
    for key, row in sorted(variant_rows.items(), key=lambda item: item[0]):
        task, metric = key
        better = "higher" if row["higher_is_better"] else "lower"
        base_value = base_values.get(key, EMPTY_CELL)
        counts = [str(row["n_samples"]), str(row["n_shot"])]
        rows.append([task, metric, better, base_value, _format_value(row), *counts])
    return f"## Benchmarks\n\nValue ± standard error.\n\n{_format_table(rows)}"


def _format_value(row: Mapping[str, Any]) -> str:
    error = "" if row["stderr"] is None else f" ± {row['stderr']:.2g}"
    return f"{row['value']:.4g}{error}"


def _write_licence(facts: Facts) -> str:
    licence = facts.base_metadata.get("license")
    if licence is None:
        return (
            "## Licence\n\nThe base model's card names no licence. Its weights are in this model: "
            "ask its authors before you pass it on."
        )
    licence_name = facts.base_metadata.get("license_name")
    label = f"{licence} ({licence_name})" if licence_name else str(licence)
    return f"## Licence\n\n{label}, as the base model."


def _public_name(model: Mapping[str, Any]) -> str:
    """The name of a model for publication: a hub id, or the last part of a folder's path."""
    source = str(model["source"])
    if model.get("revision"):
        return source
    return source.rstrip("/").rpartition("/")[2]


def _format_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, whose head is the first row."""
    header, *body = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "---|" * len(rows[0])
    return "\n".join([header, rule, *body])
