"""The classes of an export that brings lamina's modeling file, made from lamina's own text of it.

An export in form `code` loads in plain transformers with trust_remote_code, which runs every Python file that
transformers looks for in its folder. Here nothing in the folder runs: its modeling file is compared with the text that
this version of lamina would write, and the classes are made from that text.
"""

import functools
import json
import re
import sys
import types
from pathlib import Path

import transformers
from transformers import PretrainedConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.export import modeling_lamina
from lamina.version import VERSION

CODE = "modeling_lamina.py"
_CLASSES = {
    "AutoConfig": "LaminaConfig",
    "AutoModel": "LaminaModel",
    "AutoModelForCausalLM": "LaminaForCausalLM",
}
AUTO_MAP = {auto: f"modeling_lamina.{name}" for auto, name in _CLASSES.items()}


def source(config_class: str, model_class: str, model_type: str) -> str:
    """The modeling file for a family: this package's own, built on these classes of transformers."""
    text = Path(modeling_lamina.__file__).read_text(encoding="utf-8")
    for old, new in (
        ("import LlamaConfig as", f"import {config_class} as"),
        ("import LlamaForCausalLM as", f"import {model_class} as"),
        ('"lamina_llama"', f'"{model_type}"'),
    ):
        text = text.replace(old, new)
    return text


def classes(folder: Path) -> tuple[type[PretrainedConfig], type[PreTrainedModel]]:
    """The classes that an export's configuration and model have.

    Raises LaminaError if the modeling file or the configuration is not what this version of lamina writes.
    """
    text = (folder / CODE).read_text(encoding="utf-8", errors="replace")
    arguments = _arguments(text)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if arguments is None or text != source(*arguments) or config.get("auto_map") != AUTO_MAP:
        raise LaminaError(
            f"{folder} brings Python code that is not what this version of lamina ({VERSION}) writes. If you trust "
            "it, load it with trust_remote_code=True, or make the export again."
        )
    module = _module(*arguments)
    module.__file__ = str(
        (folder / CODE).resolve()
    )  # transformers copies it when the model is saved
    return module.LaminaConfig, module.LaminaForCausalLM


def _arguments(text: str) -> tuple[str, str, str] | None:
    """The arguments with which `source` gives a text; None if there are none, or they name no class of transformers."""
    patterns = (
        r"^from transformers import (\w+) as BaseConfig$",
        r"^from transformers import (\w+) as BaseModel$",
    )
    matches = [re.search(pattern, text, re.M) for pattern in (*patterns, r'^MODEL_TYPE = "(\w+)"$')]
    config_class, model_class, model_type = (match[1] if match else "" for match in matches)
    bases = ((config_class, PretrainedConfig), (model_class, PreTrainedModel))
    kinds = [(getattr(transformers, name, None) if name else None, base) for name, base in bases]
    known = all(isinstance(kind, type) and issubclass(kind, base) for kind, base in kinds)
    return (config_class, model_class, model_type) if known and model_type else None


@functools.cache
def _module(config_class: str, model_class: str, model_type: str) -> types.ModuleType:
    """The modeling file as a module; transformers looks its classes' module up by its name."""
    module = types.ModuleType(f"lamina_exports.{model_type}.{model_class}.modeling_lamina")
    sys.modules[module.__name__] = module
    exec(
        compile(source(config_class, model_class, model_type), modeling_lamina.__file__, "exec"),
        vars(module),
    )
    module.LaminaConfig.register_for_auto_class("AutoConfig")
    module.LaminaForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    return module
