"""Sections `models` and `donors`: the models under study, and siblings that lend them layers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lamina.options.entry import Entry, Filled, UserPath, option
from lamina.options.explain import invalid

# What a checkpoint replaces in a source or a revision.
CHECKPOINT_FIELD = "{checkpoint}"
Checkpoint = int | Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]


class Model(Entry):
    """A folder or a GGUF file on disk, or a model of the hub with its revision.

    A GGUF file or a quantised model is dequantised once, into results/checkpoints/CONTENT. With
    `auto`, quantised numbers of a GGUF file are rounded to bfloat16, which moves them by less than
    quantising did (docs/models.md); `float32` keeps them exactly, in twice the space.
    """

    source: UserPath = option(
        "A folder with config.json and safetensors weights, a .gguf file, or a hub id "
        "(`organisation/model`)."
    )
    revision: str | None = option(
        "Commit, tag or branch of a hub model. Needed for a hub model, ignored for a folder.", None
    )
    layers: int | None = option(
        "Number of decoder layers. Read from config.json for a folder; write it for a hub model.",
        None,
        ge=1,
    )
    family: str | None = option(
        "The `model_type` of its config.json. Read from there for a folder; may be written for a "
        "hub model.",
        None,
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "Number format in which the weights are loaded. `auto` takes the checkpoint's own; for a "
        "GGUF file bfloat16 where the machine that prepares the model multiplies in it (a GPU, or a "
        "processor with AVX512-BF16 or AMX), else float32.",
        "auto",
    )
    devices: Annotated[int, Field(ge=1)] | Literal["auto"] = option(
        "GPUs of each of its jobs, over which its layers are spread; `auto` asks for as many as "
        "its weights need. What does not fit is read from the checkpoint in every pass.",
        1,
        allowed="a number of GPUs, or auto",
    )
    trust_remote_code: bool = option("Whether Python code in the model's folder may run.", False)
    chat_template: bool = option(
        "Whether task prompts are wrapped in the tokenizer's chat template.", False
    )
    fewshot_as_turns: bool = option(
        "In a chat template: whether solved examples are turns of the conversation, or part of the "
        "turn of the question.",
        True,
    )
    system_prompt: Filled | None = option(
        "System prompt of all tasks; without a template it comes first.", None
    )
    template_arguments: dict[str, bool | int | float | str] = option(
        "What else the template is given, such as `{enable_thinking: false}`.",
        {},
        allowed="values by the names that the template reads",
    )
    checkpoints: list[Checkpoint] | None = option(
        "Checkpoints of one training. Each replaces `{checkpoint}` in `source` or `revision` and "
        "is a model NAME-CHECKPOINT of its own. A study of NAME has all of them.",
        None,
        allowed="a list of numbers or texts such as [step1000, step2000], or null",
    )
    series: str | None = option(
        "The training that the model is a checkpoint of, where models are named one by one. "
        "`checkpoints` sets it.",
        None,
    )
    step: int | None = option(
        "How far that training was, in steps or tokens: the first number in the checkpoint. "
        "`checkpoints` sets it.",
        None,
        ge=0,
    )

    @model_validator(mode="after")
    def _check_checkpoints(self) -> Self:
        if (self.series is None) != (self.step is None):
            lacking = "step" if self.step is None else "series"
            raise invalid(
                f"is missing: `series` and `step` go together. Add `{lacking}: ...`.", lacking
            )

        if self.checkpoints is None:
            return self
        if not self.checkpoints:
            raise invalid(
                "[] is not allowed. List a checkpoint, or leave `checkpoints` out.", "checkpoints"
            )
        if CHECKPOINT_FIELD not in f"{self.source} {self.revision}":
            raise invalid(
                f"nothing says where the checkpoint goes. Write {CHECKPOINT_FIELD} in `source` "
                'or `revision`, such as `revision: "step{checkpoint}"`.',
                "checkpoints",
            )
        return self


class Donor(Entry):
    """A fine-tune of the same base model: equal shape, tokenizer and positions.

    A folder, or a model of the hub with its revision, as under `models`.
    """

    source: UserPath = option(
        "A folder with config.json and safetensors weights, or a hub id (`organisation/model`)."
    )
    revision: str | None = option("Commit, tag or branch of a hub model.", None)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "Number format in which the weights are read; they take that of the model that receives "
        "them.",
        "auto",
    )
    trust_remote_code: bool = option("Whether Python code in the donor's folder may run.", False)
