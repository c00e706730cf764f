"""Section `donors`: siblings of a model, whose layers may take the places of its own."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lamina.config.entry import Choice, Filled, Place, Spelt, option


class Donor(Choice):
    """A sibling: a model of the same shape, tokenizer and positions, or several merged into the model."""


class Sibling(Donor):
    """A folder, or a model of the hub with its revision, as under `models`: its layers as they are."""

    MARKS: ClassVar[tuple[str, ...]] = ("source",)

    source: Place = option("A folder with config.json and safetensors weights, or a hub id (`organisation/model`).")
    revision: str | None = option("Commit, tag or branch of a hub model.", None)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "Number format that the weights are read in; they take the model's own where they are put.", "auto"
    )
    trust_remote_code: bool = option("Whether Python code in the donor's folder may run.", False)


class Merged(Donor):
    """Layers merged from siblings: base + weight · Σ (sibling - base) [arXiv 2506.20480]."""

    MARKS: ClassVar[tuple[str, ...]] = ("of",)

    of: list[Filled] = option("The siblings, by their names under `donors`.", min_length=1)
    weight: Annotated[float, Spelt, Field(ge=0)] = option("λ: with 0 it is the model itself.", 0.5)
