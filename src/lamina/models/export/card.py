"""Renders the model card of an export, README.md.

`TEMPLATE` is its text, filled in with `Facts`, which `lamina.models.export.save` collects. This
module reads no model and no file.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from lamina.models.cutting import shifts_kinds
from lamina.models.export.gguf_file import FILE
from lamina.models.export.packed_size import describe_packed_size
from lamina.models.export.runtimes import VLLM_LISTS
from lamina.models.gguf import is_gguf
from lamina.models.surgery import units_of
from lamina.models.units import Replacement, Visit, describe_moves, parse_edit, removals_among
from lamina.options.selectors import Selector
from lamina.variant import Variant, describe_size
from lamina.version import VERSION

ONWARD = "## Where to go from here"
# Metadata of the base model's card that its descendants inherit.
INHERITED_METADATA = ("license", "license_name", "license_link", "extra_gated_prompt", "language")
UNIT_NAMES = {
    "layer": "layer",
    "attention": "attention sub-layer",
    "mlp": "MLP sub-layer",
    "both": "sub-layer",
}
EMPTY_CELL = "–"
MEASURED_COLUMNS = {
    "score": "scores",
    "calibration accuracy before": "accuracy_before",
    "after": "accuracy_after",
}
"""Columns of the table of removed units, and the plan's keys for them."""


@dataclass(frozen=True)
class BaseSource:
    """What a variant is made of, as files and tables describe it."""

    variant: Variant
    """Its names in the configuration."""
    manifest: Mapping[str, Any]
    """Manifest of the base model: path, source, revision, dtype, …"""
    plan: Mapping[str, Any]
    """The plan, as its JSON file holds it."""
    benchmarks: Sequence[Mapping[str, Any]] = ()
    """Rows of table `benchmarks`, of this variant and of the base model."""


@dataclass(frozen=True, kw_only=True)
class Facts(BaseSource):
    """Everything that a card says."""

    form: str
    """`stock`, `code` or `gguf`."""
    n_base_parameters: int
    n_parameters: int
    """Parameters of the exported model."""
    removed_runs: Sequence[tuple[float, float]]
    """Runs of removed units as boundaries (start, end) of the base model, the end exclusive."""
    has_patches: bool
    """Whether the export applies a patch after each of these runs."""
    has_zeroed_sublayers: bool
    """Whether removed sub-layers are still there as zero weights."""
    base_metadata: Mapping[str, Any]
    """The metadata block of the base model's card."""
    has_lookahead_heads: bool
    """Whether the base model has multi-token prediction heads, which no export contains."""
    base_class: str
    """The transformers class that loads the base model."""
    vllm_obstacle: str
    """Why vLLM cannot run the code of the export; empty if it can."""
    family: str
    """`model_type` of the decoder, as in config.json."""
    visits: Sequence[Visit]
    """The layers that run, numbered as in the base model."""
    has_damped_layers: bool
    """Whether layers that run again are damped."""
    layer_kinds: Sequence[int]
    """Kind of each layer of the base model (`lamina.models.cutting.kinds_by_layer`)."""
    base_gguf_bytes: int | None
    """Bytes of the base model's GGUF file; None if it is not one, or is not there any more."""
    weights_bytes: int
    """Bytes of the exported weights."""

    @property
    def is_bare_cut(self) -> bool:
        """Whether whole layers were removed and nothing else was changed."""
        is_unrepaired = self.variant.repair == self.variant.healing == "none"
        return is_unrepaired and self.plan["kind"] == "layer" and not self.moves

    @property
    def moves(self) -> str:
        """What the plan does in addition to removing units, in words."""
        return describe_moves(self.plan["units"])

    @property
    def donor_by_layer(self) -> dict[int, str]:
        """The names of the donors whose layers replace the base model's, by layer."""
        donor_by_layer: dict[int, str] = {}
        for edit in map(parse_edit, self.plan["units"]):
            if isinstance(edit, Replacement):
                donor_by_layer[edit.layer] = edit.donor
        return donor_by_layer


TEMPLATE = """\
---
{{ metadata }}
---

# {{ base_name }} {{ title }}

`{{ base_name }}`
{%- if manifest.revision %}, revision `{{ manifest.revision }}`{% endif %}
 with {{ visits|length }} {{ "layers instead of" if moves else "of its" }} {{ layer_kinds|length -}}
{{ "" if moves else " layers" }} and
{{ "{:,}".format(n_parameters) }} {{ "parameters instead of" if moves else "of its" -}}
 {{ " {:,}".format(n_base_parameters) }}{{ "" if moves else " parameters" }}
({{ "{:.1%}".format(n_parameters / n_base_parameters) }}). Made by lamina {{ version }}; the variant
is `{{ variant }}`, the base weights have the sha256 `{{ manifest.weights_sha256 }}`.
{% if moves %}

The model {{ moves }}. Layers are numbered as in the base model, from 0.
{% endif %}
{% if has_zeroed_sublayers %}
The removed sub-layers are still there as zero weights, so that stock transformers loads the
checkpoint. This saves neither memory nor time. Export with `--form code` to leave them out.
{% endif %}
{% if packed_size %}
The weights take {{ megabytes(weights_bytes) }} MB.
{%   if form == "gguf" %}
The remaining tensors are bit-identical to those in the GGUF file of the base model.
{%   else %}
{{ packed_size }}
{%   endif %}
{% endif %}

## How to load

{% if form == "gguf" %}
```
llama-cli -m FOLDER/{{ gguf_file }}
```

In lamina, the file is the `source` of a model. In transformers, load it with
`{{ base_class }}.from_pretrained("FOLDER", gguf_file="{{ gguf_file }}")`.
{% else %}
```python
from transformers import {{ model_class }}, AutoTokenizer

model = {{ model_class }}.from_pretrained("FOLDER", dtype="auto"{{ trust }})
tokenizer = AutoTokenizer.from_pretrained("FOLDER"{{ trust }})
```
{%   if form == "code" %}

The code is `modeling_lamina.py` in this folder. Without it, the model would silently lose what the
code adds, so loading without the flag is refused. `lamina.load("FOLDER")`, with the same version of
lamina, needs no flag.
{%   endif %}

{{ onward }}

{%   if form == "code" and vllm_obstacle %}
Not with vLLM or llama.cpp. {{ vllm_obstacle }}
{%   elif form == "code" %}
With vLLM's Transformers backend, which runs the code of this folder (according to the source of
vLLM 0.33):

    vllm serve FOLDER --trust-remote-code

Not with llama.cpp, which cannot run {{ "patches" if has_patches else "this code" }}.
{%   elif first_shifted is not none %}
{%     if is_known_to_vllm %}
With vLLM from version 0.33, which reads the kinds of layers from config.json:

    vllm serve FOLDER

{%     endif %}
Not with llama.cpp{{ "" if is_known_to_vllm else " or vLLM" }}: there, the index of a layer
determines its sliding window, RoPE base and experts, and
this cut shifts them. Layer {{ first_shifted }} differs in kind from layer {{ first_shifted }} of
the base model. Another model would run, without an error. A selector with `strategy: block` and
`periods: whole` makes cuts that keep the pattern.
{%   else %}
As a GGUF, with llama.cpp:

    python convert_hf_to_gguf.py FOLDER --outfile model.gguf

{%     if can_be_cut_as_gguf %}
The same layers, removed from a GGUF of the base model:

    llama-quantize --prune-layers {{ plan.units|map("int")|sort|join(",") }} base-f16.gguf {{ "" -}}
    model-q4_k_m.gguf q4_k_m

{%     endif %}
With vLLM, from the path of this folder:

    vllm serve FOLDER
{%   endif %}
{% endif %}

## What was {{ "changed" if moves else "removed" }}, and why

Selector `{{ plan.selector }}`: strategy `{{ plan.strategy }}`,
{% if plan.metric %}
metric `{{ plan.metric }}` on the calibration `{{ plan.calibration }}`; {{ choice }}.
{% else %}
no measurement.
{% endif %}
Units are numbered as in the base model, from 0.

{{ table(removal_rows) }}
{% if donor_by_layer %}

## Donors

Layers of other models replace these layers of the base model. Their licences apply to this model
too.

{%   for layer, name in donor_by_layer|dictsort %}
- Layer {{ layer }}: `{{ name }}`.
{%   endfor %}
{%   for name, donor in plan.replacements.items() %}
- `{{ name }}`: `{{ public_name(donor) }}{{ "@" ~ donor.revision if donor.revision }}`, whose
  weights have the sha256 `{{ donor.weights_sha256 }}`.
{%   endfor %}
{% endif %}

## Repairs

{% if variant.repair == variant.healing == "none" %}
None: no patch and no training after the removal.
{% endif %}
{% if has_patches %}
Patch `{{ variant.repair }}`, fitted on the calibration without training: one linear map of the
residual stream for each run of removed units ({{ runs }}).
{% elif variant.repair != "none" and not removed_runs %}
Nothing was removed, so repair `{{ variant.repair }}` changed nothing.
{% elif variant.repair != "none" %}
Repair `{{ variant.repair }}`, fitted on the calibration for the removed units ({{ runs }}) and
folded into the weights.
{% endif %}
{% if variant.healing != "none" %}
{%   if variant.repair != "none" %}

{%   endif %}
Healing `{{ variant.healing }}`: short fine-tuning, merged into the weights and patches it changed.
{% endif %}

## Benchmarks

{% if benchmark_rows %}
Value ± standard error.

{{ table(benchmark_rows) }}
{% else %}
None were measured on this variant.
{% endif %}

## Licence

{% if base_metadata.license %}
{{ base_metadata.license }}
{%-   if base_metadata.license_name %} ({{ base_metadata.license_name }}){% endif %}
, as the base model.
{% else %}
The base model's card names no licence. Its weights are in this model: ask its authors before you
pass it on.
{% endif %}
"""


def render_card(facts: Facts) -> str:
    """The README.md of an export: a Hugging Face model card."""
    from jinja2 import Environment

    plan = facts.plan
    has_code = facts.form == "code"
    selector_options = Selector.kind_of(plan["strategy"]) or Selector
    values = {field.name: getattr(facts, field.name) for field in fields(facts)}
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(TEMPLATE).render(
        **values,
        metadata=_metadata(facts).to_yaml(),
        version=VERSION,
        gguf_file=FILE,
        onward=ONWARD,
        public_name=_public_name,
        megabytes=lambda n_bytes: f"{n_bytes / 1e6:,.1f}",
        table=_format_table,
        base_name=_public_name(facts.manifest),
        packed_size=_describe_packed_size(facts),
        title=_title(facts),
        moves=facts.moves,
        is_bare_cut=facts.is_bare_cut,
        donor_by_layer=facts.donor_by_layer,
        # This class finds lamina's own code in the folder.
        model_class="AutoModelForCausalLM" if has_code else facts.base_class,
        trust=", trust_remote_code=True" if has_code else "",
        first_shifted=_first_shifted_layer(facts),
        is_known_to_vllm=facts.family in VLLM_LISTS,
        can_be_cut_as_gguf=_can_be_cut_as_gguf(facts),
        choice=selector_options.CHOICE,
        removal_rows=_removal_rows(plan),
        runs=", ".join(_format_run(*run) for run in facts.removed_runs),
        benchmark_rows=_benchmark_rows(facts.benchmarks),
    )


def _describe_packed_size(facts: Facts) -> str:
    """A sentence about the GGUF file of the base model; empty if its size is not known."""
    if facts.base_gguf_bytes is None:
        return ""
    file_name = _public_name(facts.manifest)
    return describe_packed_size(
        file_name, facts.base_gguf_bytes, str(facts.variant), facts.is_bare_cut
    )


def _title(facts: Facts) -> str:
    """The part of the title after the base model's name."""
    if facts.variant.removed < 1:
        return f"with {describe_size(facts.variant.removed)}"
    n_removed = len(removals_among(facts.plan["units"]))
    unit_name = UNIT_NAMES[facts.plan["kind"]]
    return f"without {n_removed} {unit_name}{'s' if n_removed != 1 else ''}"


def _metadata(facts: Facts) -> ModelCardData:
    """The block of YAML at the head of the card."""
    inherited = {
        key: facts.base_metadata[key] for key in INHERITED_METADATA if key in facts.base_metadata
    }
    tags = ["lamina", "pruned"]
    if facts.form == "code":
        tags.append("custom_code")
    donors = facts.plan.get("replacements") or {}
    ancestors = [facts.manifest, *donors.values()]
    hub_ids = [str(model["source"]) for model in ancestors if model.get("revision")]
    # The hub knows adapter, merge, quantized and finetune. The last covers any change of weights.
    relation = "merge" if donors else "finetune"
    results = list(_evaluation_results(facts.benchmarks))
    return ModelCardData(
        **inherited,
        base_model=hub_ids[0] if len(hub_ids) == 1 else hub_ids or None,
        base_model_relation=relation if hub_ids else None,
        library_name="gguf" if facts.form == "gguf" else "transformers",
        pipeline_tag="text-generation",
        tags=tags,
        model_name=str(facts.variant) if results else None,
        eval_results=results or None,
    )


def _evaluation_results(benchmarks: Sequence[Mapping[str, Any]]) -> Iterator[EvalResult]:
    """The rows of the variant, each followed by its standard error, under lm-eval's names.

    Infinite perplexities are left out, because JSON has no such numbers.
    """
    for row in benchmarks:
        if row["selector"] == "none" or row.get("part_of"):
            continue
        metric, _, filter_name = row["metric"].partition(",")
        numbers = {metric: row["value"], f"{metric}_stderr": row["stderr"]}
        counts = {"num_fewshot": row["n_shot"], "num_samples": row["n_samples"]}
        for name, number in numbers.items():
            if number is None or not math.isfinite(number):
                continue
            yield EvalResult(
                task_type="text-generation",
                dataset_type=row["task"],
                dataset_name=row["task"],
                dataset_args=counts,
                metric_type=name,
                metric_name=f"{name},{filter_name}" if filter_name else name,
                metric_value=number,
            )


def _first_shifted_layer(facts: Facts) -> int | None:
    """The first layer whose kind differs from that of the base model's layer with its index.

    Programs that derive a layer's kind from its index would run another model.
    """
    sources = [visit.layer for visit in facts.visits]
    for position in range(len(sources)):
        if shifts_kinds(facts.layer_kinds, sources[: position + 1]):
            return position
    return None


def _can_be_cut_as_gguf(facts: Facts) -> bool:
    """Whether llama-quantize makes the same cut.

    It does not cut lists with an entry per layer, and counts lookahead heads as layers of a GGUF.
    """
    is_uniform = len(set(facts.layer_kinds)) == 1 and not facts.has_lookahead_heads
    return facts.is_bare_cut and is_uniform and not is_gguf(facts.manifest["source"])


def _removal_rows(plan: Mapping[str, Any]) -> list[list[str]]:
    """A row per removed unit, in the order of removal, with what was measured of it.

    The first row is the header. Columns where no unit has a number are left out.
    """
    units = plan["units"]
    columns = [
        ["order", *(str(order) for order in range(1, 1 + len(units)))],
        ["unit", *(f"`{unit}`" for unit in units)],
    ]
    for head, key in MEASURED_COLUMNS.items():
        values = plan.get(key) or []
        if len(values) == len(units) and any(value is not None for value in values):
            cells = [EMPTY_CELL if value is None else f"{value:.4g}" for value in values]
            columns.append([head, *cells])
    return [list(row) for row in zip(*columns, strict=True)]


def _format_run(start: float, end: float) -> str:
    """The first and the last unit of a run, such as `3–5`, or its only one."""
    units = units_of(start, end)
    return units[0] if units[0] == units[-1] else f"{units[0]}–{units[-1]}"


def _benchmark_rows(benchmarks: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header, and a row per task and metric: this variant against the base model."""
    base_values: dict[tuple[str, str], str] = {}
    variant_rows: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in benchmarks:
        if row.get("part_of"):
            continue
        key = (row["task"], row["metric"])
        if row["selector"] == "none":
            base_values[key] = _format_value(row)
        else:
            variant_rows[key] = row
    if not variant_rows:
        return []

    rows = [["task", "metric", "better", "base model", "this model", "samples", "shots"]]
    for key, row in sorted(variant_rows.items(), key=lambda item: item[0]):
        better = "higher" if row["higher_is_better"] else "lower"
        base_value = base_values.get(key, EMPTY_CELL)
        counts = [str(row["n_samples"]), str(row["n_shot"])]
        rows.append([*key, better, base_value, _format_value(row), *counts])
    return rows


def _format_value(row: Mapping[str, Any]) -> str:
    error = "" if row["stderr"] is None else f" ± {row['stderr']:.2g}"
    return f"{row['value']:.4g}{error}"


def _public_name(model: Mapping[str, Any]) -> str:
    """The name of a model for publication: a hub id, or the last part of a folder's path."""
    source = str(model["source"])
    if model.get("revision"):
        return source
    return source.rstrip("/").rpartition("/")[2]


def _format_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its header."""
    header, *body = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|" + "---|" * len(rows[0])
    return "\n".join([header, rule, *body])
