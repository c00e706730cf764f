"""What `lamina export` prints at the end."""

from pathlib import Path

from lamina.models.export.packed_size import describe_packed_size
from lamina.store import checksum
from lamina.variant import Variant
from lamina_workflow.report.formatting import format_bytes

WEIGHTS = (".safetensors", ".gguf")
"""Endings of the files of an export that hold weights."""


def describe_export(folder: Path, variant: str, results: Path) -> list[str]:
    """Where an export is and how large; for GGUF, also the size of the file that it came from."""
    weights = [path for path in folder.iterdir() if path.suffix in WEIGHTS]
    size = sum(path.stat().st_size for path in weights)
    lines = [f"exported  {folder} ({format_bytes(size)} of weights)"]
    parsed = Variant.parse(variant)
    manifest = checksum.read_json(results / "models" / parsed.model / "manifest.json")
    source = Path(manifest["source"])
    is_gguf_export = any(path.suffix == ".gguf" for path in weights)
    if source.suffix != ".gguf" or not source.is_file() or is_gguf_export:
        return lines
    is_bare_cut = parsed.repair == parsed.healing == "none"
    packed = describe_packed_size(source.name, source.stat().st_size, variant, is_bare_cut)
    lines.append(f"          {packed}")
    return lines
