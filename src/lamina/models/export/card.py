"""What an export says about itself: the model card, and the recipe with which mergekit makes the same cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from lamina.config.selectors import Selector
from lamina.models.cutting import shifts
from lamina.models.export.gguf_file import FILE
from lamina.models.gguf import is_gguf
from lamina.models.surgery import units_of
from lamina.models.units import parse, replacement
from lamina.study.variant import Variant
from lamina.version import VERSION

# Keys of a base model's card that bind its descendants.
_LICENCE = ("license", "license_name", "license_link", "extra_gated_prompt")
_DESCRIPTIVE = ("language",)
ONWARD = "## Where to go from here"
# Decoders whose windows, positions and experts vLLM 0.33 takes from lists and counts (see reports/runtimes.md).
VLLM_LISTS = frozenset(
    "afmoe apertus cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 exaone4 exaone_moe gemma2 gemma3_text gemma4_text "
    "gemma4_unified_text glm4_moe granite_swa granitemoe_swa granitemoehybrid laguna lfm2 lfm2_moe llama ministral3 "
    "mistral nemotron_h olmo3 olmo_hybrid qwen2_moe qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next smollm3 "
    "vaultgemma".split()
)


@dataclass(frozen=True)
class Source:
    """What a variant is made of, as files and tables describe it."""

    variant: Variant  # its names in the configuration
    manifest: Mapping[str, Any]  # of the base model: path, source, revision, dtype
    plan: Mapping[str, Any]  # as JSON gives it
    benchmarks: Sequence[
        Mapping[str, Any]
    ] = ()  # rows of that table of this variant and of the base model


@dataclass(frozen=True, kw_only=True)
class Facts(Source):
    """Everything that a card tells."""

    form: str  # stock, code or gguf
    parameters: tuple[int, int]  # of the base model and of the export
    boundaries: Sequence[
        tuple[float, float]
    ]  # runs of removed units in base numbering, end exclusive
    patched: bool  # whether the export applies a patch at each of them
    zeroed: bool  # whether removed halves are still there as zero weights
    base_card: Mapping[str, Any]  # metadata of the base model's card
    predicts_ahead: (
        bool  # whether the base model has heads for tokens further ahead, which no export holds
    )
    base_class: str  # the class of transformers that loads the base model
    unserved: str  # why vLLM cannot run the code of the export; empty if it can
    family: str  # of the decoder, as config.json names it
    kept: Sequence[int]  # base numbers of the layers that stay
    kinds: Sequence[
        int
    ]  # of the base model's layers, as `lamina.models.cutting.kinds` tells them apart
    base_size: int | None  # bytes of the GGUF file that is the base model; None if it is none
    size: int  # bytes of the weights of the export

    @property
    def cut_alone(self) -> bool:
        """Whether whole layers went and nothing else was changed."""
        bare = self.variant.repair == self.variant.healing == "none"
        return bare and self.plan["kind"] == "layer" and not self.donated

    @property
    def donated(self) -> dict[int, str]:
        """The donors of layers that stay, by layer."""
        return {parse(unit)[0]: name for unit in self.plan["units"] if (name := replacement(unit))}


def card(facts: Facts) -> str:
    """The README.md of an export: a Hugging Face model card."""
    sections = [_metadata(facts), _summary(facts), _loading(facts), _onward(facts), _removed(facts)]
    sections += [_donors(facts), _repairs(facts), _benchmarks(facts), _licence(facts)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _metadata(facts: Facts) -> str:
    carried = {
        key: facts.base_card[key] for key in (*_LICENCE, *_DESCRIPTIVE) if key in facts.base_card
    }
    tags = ["lamina", "pruned", *(["custom_code"] if facts.form == "code" else [])]
    library = "gguf" if facts.form == "gguf" else "transformers"
    head: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": tags,
    }
    if facts.manifest.get("revision"):
        head["base_model"] = str(facts.manifest["source"])
    return (
        f"---\n{yaml.safe_dump(carried | head, sort_keys=False, allow_unicode=True).strip()}\n---"
    )


def _summary(facts: Facts) -> str:
    plan, (before, after) = facts.plan, facts.parameters
    name = _name(facts.manifest)
    revision = (
        f", revision `{facts.manifest['revision']}`" if facts.manifest.get("revision") else ""
    )
    kinds = {
        "layer": "layers",
        "attention": "attention sub-layers",
        "mlp": "MLP sub-layers",
        "both": "sub-layers",
    }
    gone = sum(not replacement(unit) for unit in plan["units"])
    what = kinds[plan["kind"]]
    title = f"# {name} without {gone} {what.removesuffix('s') if gone == 1 else what}"
    text = (
        f"`{name}`{revision} with {len(facts.kept)} of its {len(facts.kinds)} layers and {after:,} of its "
        f"{before:,} parameters ({after / before:.1%}). "
        f"Made by lamina {VERSION}; the variant is `{facts.variant}`, the base weights have the sha256 "
        f"`{facts.manifest['weights_sha256']}`."
    )
    if facts.zeroed:
        text += (
            " The removed halves are still there as zero weights, so that stock transformers loads the checkpoint: it "
            "saves neither memory nor time. Export with `FORM=code` to leave them out."
        )
    return f"{title}\n\n{text}{_size(facts)}"


def _size(facts: Facts) -> str:
    """What the weights take beside the GGUF file that they come from; empty for other models."""
    if facts.base_size is None:
        return ""
    base = f"the GGUF file of the base model {facts.base_size / 1e6:,.1f} MB"
    text = f" The weights take {facts.size / 1e6:,.1f} MB, {base}."
    if facts.form == "gguf":
        return text + " The tensors that stay have the bits that they have there."
    if facts.manifest["dtype"] in ("auto", "float32"):
        text += " They are stored in float32; `dtype: bfloat16` in the model's entry halves that."
    if facts.cut_alone:
        text += f" `make export VARIANT={facts.variant} FORM=gguf` writes a GGUF file with the bits of the base model's."
    return text


def _loading(facts: Facts) -> str:
    if facts.form == "gguf":
        return (
            f"## How to load\n\n```\nllama-cli -m FOLDER/{FILE}\n```\n\nlamina takes the file as the `source` of a "
            f'model, transformers by `{facts.base_class}.from_pretrained("FOLDER", gguf_file="{FILE}")`.'
        )
    trust = ", trust_remote_code=True" if facts.form == "code" else ""
    kind = (
        "AutoModelForCausalLM" if facts.form == "code" else facts.base_class
    )  # the former finds lamina's own code
    code = (
        f"## How to load\n\n```python\nfrom transformers import {kind}, AutoTokenizer\n\n"
        f'model = {kind}.from_pretrained("FOLDER", dtype="auto"{trust})\n'
        f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trust})\n```'
    )
    if facts.form == "code":
        code += (
            "\n\nThe code is `modeling_lamina.py` beside this file. Without it the model would silently lose what it "
            'adds, so a plain load is refused. `lamina.load("FOLDER")` of the same version of lamina needs no flag.'
        )
    return code


def _onward(facts: Facts) -> str:
    """Commands for programs that read the checkpoint, where they run the same model."""
    if facts.form == "gguf":
        return ""
    commands, warning = [], ""
    vllm = ("Served by vLLM, from the path of this folder", "vllm serve FOLDER")
    if facts.form == "code":
        if facts.unserved:
            return f"{ONWARD}\n\nNot to vLLM or llama.cpp. {facts.unserved}"
        served = "Served by vLLM's Transformers backend, which runs the code of this folder (read in its version 0.33)"
        commands = [(served, "vllm serve FOLDER --trust-remote-code")]
        warning = "Not to llama.cpp, which has no place for patches."
    elif shifts(facts.kinds, facts.kept):
        first = next(
            n for n, layer in enumerate(facts.kept) if facts.kinds[layer] != facts.kinds[n]
        )
        listed = facts.family in VLLM_LISTS
        where = "llama.cpp" if listed else "llama.cpp or vLLM"
        warning = (
            f"Not to {where}. They place sliding windows, RoPE bases and experts by a layer's "
            f"number, and this cut shifts them: layer {first} is of another kind than layer {first} of the base model. "
            "They would run another model, and no error would say so. A selector with `strategy: block` and "
            "`periods: whole` makes cuts that keep the pattern."
        )
        if listed:
            warning = warning.replace("They place", "It places").replace("They would", "It would")
            commands = [
                (
                    "Served by vLLM from version 0.33, which takes the kinds of layers from config.json",
                    vllm[1],
                )
            ]
    else:
        commands = [
            (
                "As a GGUF, with llama.cpp",
                "python convert_hf_to_gguf.py FOLDER --outfile model.gguf",
            )
        ]
        # Heads that predict tokens further ahead count as layers of a GGUF, and llama-quantize leaves lists by layer.
        alike = len(set(facts.kinds)) == 1 and not facts.predicts_ahead
        if facts.cut_alone and alike and not is_gguf(facts.manifest["source"]):
            gone = ",".join(map(str, sorted(map(int, facts.plan["units"]))))
            cut = f"llama-quantize --prune-layers {gone} base-f16.gguf model-q4_k_m.gguf q4_k_m"
            commands.append(("The same layers dropped from a GGUF of the base model", cut))
        commands.append(vllm)
    said = [f"{words}:\n\n    {command}" for words, command in commands]
    return "\n\n".join([ONWARD, *said, *filter(None, [warning])])


def _removed(facts: Facts) -> str:
    plan = facts.plan
    order = (Selector.kind_of(plan["strategy"]) or Selector).CHOICE
    why = f"metric `{plan['metric']}` on the calibration `{plan['calibration']}`; {order}"
    why = why if plan["metric"] else "no measurement"
    rows = [["order", "unit", "score", "calibration accuracy before", "after"]]
    size = len(plan["units"])
    for number, unit in enumerate(plan["units"]):
        values = [
            _entry(plan.get(key), number, size)
            for key in ("scores", "accuracy_before", "accuracy_after")
        ]
        rows.append([str(number + 1), f"`{unit}`", *values])
    kept = [index for index in range(5) if index < 2 or any(row[index] != "–" for row in rows[1:])]
    table = _table([[row[index] for index in kept] for row in rows])
    return (
        f"## What was removed, and why\n\nSelector `{plan['selector']}`: strategy `{plan['strategy']}`, {why}. "
        f"Units are numbered as in the base model, from 0.\n\n{table}"
    )


def _donors(facts: Facts) -> str:
    """The donors whose layers replace layers of the base model; empty if there are none."""
    lines = []
    for layer, name in sorted(facts.donated.items()):
        record = facts.plan["replacements"][name]
        made = "as it is"
        if "of" in record:
            made = f"merged: base + {record['weight']:g} · Σ (donor - base) over {', '.join(record['of'])}"
        lines.append(f"- Layer {layer}: `{name}`, {made}.")
    if not lines:
        return ""
    for name, record in facts.plan["replacements"].items():
        if "of" not in record:
            at = f"@{record['revision']}" if record.get("revision") else ""
            sha256 = record["weights_sha256"]
            lines.append(
                f"- `{name}`: `{_name(record)}{at}`, whose weights have the sha256 `{sha256}`."
            )
    return (
        "## Donors\n\nLayers of other models stand in the places of the base model's, numbered as there. Their "
        "licences hold for this model too.\n\n" + "\n".join(lines)
    )


def _name(model: Mapping[str, Any]) -> str:
    """The name of a model for publication: a hub id, or the last part of a folder's path."""
    source = str(model["source"])
    return source if model.get("revision") else source.rstrip("/").rpartition("/")[2]


def _entry(values: Sequence[float | None] | None, number: int, size: int) -> str:
    value = values[number] if values and len(values) == size else None
    return "–" if value is None else f"{value:.4g}"


def _repairs(facts: Facts) -> str:
    if facts.variant.repair == facts.variant.healing == "none":
        return "## Repairs\n\nNone: no patch and no training after the removal."
    lines = []
    gone = [units_of(*run) for run in facts.boundaries]
    places = ", ".join("–".join(dict.fromkeys((units[0], units[-1]))) for units in gone)
    if facts.patched:
        lines.append(
            f"Patch `{facts.variant.repair}`, fitted without training on the calibration: one linear map of the "
            f"residual stream where layers went ({places})."
        )
    elif facts.variant.repair != "none":
        lines.append(
            f"Repair `{facts.variant.repair}`, fitted on the calibration where layers went ({places}), and folded "
            "into the weights."
        )
    if facts.variant.healing != "none":
        lines.append(
            f"Healing `{facts.variant.healing}`: a short training, merged into the weights and patches it changed."
        )
    return "## Repairs\n\n" + "\n\n".join(lines)


def _benchmarks(facts: Facts) -> str:
    """A row per task and metric, this variant against the base model, each with its standard error."""
    whole = [row for row in facts.benchmarks if not row.get("part_of")]
    base = {(row["task"], row["metric"]): _measured(row) for row in whole if row["removed"] == 0}
    ours = {(row["task"], row["metric"]): row for row in whole if row["removed"] != 0}
    rows = [["task", "metric", "better", "base model", "this model", "samples", "shots"]]
    for key in sorted(ours):
        better = "higher" if ours[key]["higher_is_better"] else "lower"
        counts = [str(ours[key][name]) for name in ("n_samples", "n_shot")]
        rows.append([*key, better, base.get(key, "–"), _measured(ours[key]), *counts])
    if len(rows) == 1:
        return "## Benchmarks\n\nNone were measured on this variant."
    return f"## Benchmarks\n\nValue ± standard error.\n\n{_table(rows)}"


def _measured(row: Mapping[str, Any]) -> str:
    error = "" if row["stderr"] is None else f" ± {row['stderr']:.2g}"
    return f"{row['value']:.4g}{error}"


def _licence(facts: Facts) -> str:
    name = facts.base_card.get("license")
    if name is None:
        return (
            "## Licence\n\nThe base model's card names no licence. Its weights are in this model: ask its authors "
            "before you pass it on."
        )
    label = (
        f"{name} ({facts.base_card['license_name']})"
        if facts.base_card.get("license_name")
        else str(name)
    )
    return f"## Licence\n\n{label}, as the base model."


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def mergekit(facts: Facts, silenced: Mapping[int, Sequence[str]]) -> str:
    """The passthrough recipe for the plan alone: mergekit's `layer_range` is half-open, in base numbering.

    `silenced` has by layer parts of the names of weights in its removed halves; the recipe scales these to zero.
    """
    slices: list[dict[str, Any]] = []
    merged = []
    for layer in facts.kept:
        filters, of = list(silenced.get(layer, ())), facts.manifest
        if layer in facts.donated:
            donor = facts.plan["replacements"][facts.donated[layer]]
            if "of" in donor:
                merged.append(layer)
            else:
                of = donor
        model = f"{of['source']}@{of['revision']}" if of.get("revision") else str(of["source"])
        if is_gguf(model):  # mergekit reads the checkpoint that the file became
            model = str(of["path"])
        last = slices[-1]["sources"][0] if slices else {}
        joins = last.get("model") == model and last["layer_range"][1] == layer
        if not filters and joins and "parameters" not in last:
            last["layer_range"][1] = layer + 1
            continue
        part: dict[str, Any] = {"model": model, "layer_range": [layer, layer + 1]}
        if filters:
            part["parameters"] = {
                "scale": [*({"filter": name, "value": 0.0} for name in filters), {"value": 1.0}]
            }
        slices.append({"sources": [part]})
    recipe: dict[str, Any] = {"merge_method": "passthrough", "slices": slices}
    if facts.manifest["dtype"] != "auto":
        recipe["dtype"] = facts.manifest["dtype"]
    notes = [f"The plan of {facts.variant} for mergekit: mergekit-yaml mergekit.yaml FOLDER"]
    if facts.patched or facts.variant.healing != "none":
        notes.append(
            "It makes the cut alone. This export also holds what repairs it, which mergekit does not know."
        )
    if merged:
        notes.append(
            f"Layers {', '.join(map(str, merged))} of the export are merged; here they are the base model's."
        )
    notes.append(
        "mergekit copies lists with one entry per layer (layer_types) as they are: cut them in config.json."
    )
    return "".join(f"# {note}\n" for note in notes) + yaml.safe_dump(recipe, sort_keys=False)
