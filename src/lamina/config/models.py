"""Section `models`: the models under study."""

from typing import Literal

from lamina.config.entry import Entry, Place, option


class Model(Entry):
    """A folder on disk, or a model of the hub with its revision."""

    source: Place = option("A folder with config.json and safetensors weights, or a hub id (`organisation/model`).")
    revision: str | None = option(
        "Commit, tag or branch of a hub model. Needed for a hub model, ignored for a folder.", None
    )
    layers: int | None = option(
        "Number of decoder layers. Read from config.json for a folder; write it for a hub model.", None, ge=1
    )
    family: str | None = option(
        "The `model_type` of its config.json. Read from there for a folder; may be written for a hub model.", None
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "Number format the weights are loaded in; `auto` takes the checkpoint's own.", "auto"
    )
    trust_remote_code: bool = option("Whether Python code in the model's folder may run.", False)
    chat_template: bool = option("Whether task prompts are wrapped in the tokenizer's chat template.", False)


read = Model.from_options
