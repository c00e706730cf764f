"""Builds the classes of an export in form `code` without running code from its folder.

Plain transformers loads such an export with trust_remote_code, and runs the Python files that it
looks for in the folder. Here the folder's modeling file is compared with the text that this version
of lamina would write, and the classes are built from that text.
"""

import functools
import json
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import transformers
from transformers import PretrainedConfig, PreTrainedModel

from lamina.errors import LaminaError
from lamina.models.export import modeling_lamina
from lamina.version import VERSION

CODE = "modeling_lamina.py"
AUTO_MAP = {
    "AutoConfig": "modeling_lamina.LaminaConfig",
    "AutoModel": "modeling_lamina.LaminaModel",
    "AutoModelForCausalLM": "modeling_lamina.LaminaForCausalLM",
}


class ModelingFileNames(NamedTuple):
    """The names that distinguish the modeling file of one family from another's."""

    config_class: str
    model_class: str
    model_type: str


def render_code(config_class: str, model_class: str, model_type: str) -> str:
    """The modeling file for a family: this package's own, with these classes of transformers."""
    text = Path(modeling_lamina.__file__).read_text(encoding="utf-8")
    text = text.replace("import LlamaConfig as", f"import {config_class} as")
    text = text.replace("import LlamaForCausalLM as", f"import {model_class} as")
    return text.replace('"lamina_llama"', f'"{model_type}"')


def load_classes(folder: Path) -> tuple[type[PretrainedConfig], type[PreTrainedModel]]:
    """The classes of an export's configuration and model.

    Raises LaminaError if the modeling file or the configuration is not what this version of lamina
    writes.
    """
    code_file = folder / CODE
    text = code_file.read_text(encoding="utf-8", errors="replace")
    names = _find_names(text)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if names is None or text != render_code(*names) or config.get("auto_map") != AUTO_MAP:
        raise LaminaError(
            f"{folder} brings Python code that is not what this version of lamina ({VERSION}) "
            "writes. If you trust it, load it with trust_remote_code=True; else make the export "
            "again."
        )
    module = _make_module(*names)
    # When the model is saved, transformers copies the code from this path.
    module.__file__ = str(code_file.resolve())
    return module.LaminaConfig, module.LaminaForCausalLM


def _find_names(text: str) -> ModelingFileNames | None:
    """The names with which `render_code` gives a text; None if transformers has no such classes."""
    config_match = re.search(r"^from transformers import (\w+) as BaseConfig$", text, re.M)
    model_match = re.search(r"^from transformers import (\w+) as BaseModel$", text, re.M)
    type_match = re.search(r'^MODEL_TYPE = "(\w+)"$', text, re.M)
    if config_match is None or model_match is None or type_match is None:
        return None
    names = ModelingFileNames(config_match[1], model_match[1], type_match[1])
    if not _is_class_of_transformers(names.config_class, PretrainedConfig):
        return None
    if not _is_class_of_transformers(names.model_class, PreTrainedModel):
        return None
    return names


def _is_class_of_transformers(name: str, base_class: type) -> bool:
    found = getattr(transformers, name, None)
    return isinstance(found, type) and issubclass(found, base_class)


@functools.cache
def _make_module(config_class: str, model_class: str, model_type: str) -> types.ModuleType:
    """The modeling file as a module, in which transformers looks up its classes by name."""
    module = types.ModuleType(f"lamina_exports.{model_type}.{model_class}.modeling_lamina")
    sys.modules[module.__name__] = module
    text = render_code(config_class, model_class, model_type)
    exec(compile(text, modeling_lamina.__file__, "exec"), vars(module))
    module.LaminaConfig.register_for_auto_class("AutoConfig")
    module.LaminaForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    return module
