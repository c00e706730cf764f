"""Sections `models` and `donors`: the models under study, and siblings that lend them layers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lamina.options.entry import Entry, Filled, UserPath, option
from lamina.options.explain import invalid

# What a checkpoint replaces in a source or a revision.
CHECKPOINT_FIELD = "{checkpoint}"
Checkpoint = int | Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]


class Model(Entry):
    """A folder or a GGUF file on disk, or a hub model with its revision.

    A GGUF file or a quantised model is dequantised once, into results/checkpoints/CONTENT. With
    `dtype: auto`, quantised weights of a GGUF file are rounded to bfloat16, which changes them less
    than quantisation did (docs/models.md). `float32` keeps them exact and takes twice the space.
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
        "The `model_type` in config.json. Read from there for a folder; optional for a hub model.",
        None,
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "Data type in which the weights are loaded. `auto` takes the checkpoint's own. For a "
        "GGUF file, it takes bfloat16 if the file is quantised or in bfloat16 and the machine "
        "that prepares the model computes in it (a GPU, or a processor with AVX512-BF16 or AMX), "
        "else float32.",
        "auto",
    )
    devices: Annotated[int, Field(ge=1)] | Literal["auto"] = option(
        "GPUs per job, over which the layers are spread; `auto` requests as many as the weights "
        "need. Layers that do not fit are read from the checkpoint in every forward pass.",
        1,
        allowed="a number of GPUs, or auto",
    )
    trust_remote_code: bool = option("Whether Python code in the model's folder may run.", False)
    chat_template: bool = option(
        "Whether task prompts are wrapped in the tokenizer's chat template.", False
    )
    fewshot_as_turns: bool = option(
        "With a chat template: whether few-shot examples are separate turns, or part of the "
        "question's turn.",
        True,
    )
    system_prompt: Filled | None = option(
        "System prompt of all tasks; without a chat template it precedes the prompt.", None
    )
    template_arguments: dict[str, bool | int | float | str] = option(
        "Further arguments of the chat template, such as `{enable_thinking: false}`.",
        {},
        allowed="values by the names that the template reads",
    )
    checkpoints: list[Checkpoint] | None = option(
        "Checkpoints of one training run. Each replaces `{checkpoint}` in `source` or `revision` "
        "and becomes a separate model NAME-CHECKPOINT. Studies that list NAME use all of them.",
        None,
        allowed="a list of numbers or texts such as [step1000, step2000], or null",
    )
    series: str | None = option(
        "Training run that the model is a checkpoint of, if its checkpoints are separate "
        "entries. `checkpoints` sets it.",
        None,
    )
    step: int | None = option(
        "Progress of that training run, in steps or tokens. `checkpoints` sets it to the first "
        "number in the checkpoint.",
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
    """A fine-tune of the same base model, with equal shapes, tokenizer and position encoding.

    A folder, or a hub model with its revision, as under `models`.
    """

    source: UserPath = option(
        "A folder with config.json and safetensors weights, or a hub id (`organisation/model`)."
    )
    revision: str | None = option("Commit, tag or branch of a hub model.", None)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "Data type in which the weights are read; they are converted to that of the receiving "
        "model.",
        "auto",
    )
    trust_remote_code: bool = option("Whether Python code in the donor's folder may run.", False)
