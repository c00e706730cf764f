"""`python -m lamina.runtime.explain FILE …` prints where a file of results came from: rule, options, inputs, code."""

import json
import sys
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError, explained
from lamina.store import checksum as seal


def job(path: Path) -> dict[str, Any]:
    """Rule, wildcards, inputs, options and code of the job that wrote a file; a LaminaError if the file has none."""
    if path.is_dir() and (path / "adapter_model.safetensors").is_file():
        path = path / "adapter_model.safetensors"
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if head.startswith(seal.PARQUET):
                import pyarrow.parquet as pq

                text = (pq.read_schema(path).metadata or {})[seal.JOB.encode()]
            elif head.startswith(b"{"):
                text = json.loads(path.read_text(encoding="utf-8"))[seal.JOB]
            else:
                header = json.loads(file.read(int.from_bytes(head, "little")))
                text = json.loads(header["__metadata__"]["lamina"])[seal.JOB]
        return dict(json.loads(text))
    except (OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise LaminaError(f"{path} does not say which job wrote it. Tables, plans, patches, adapters do.") from error


if __name__ == "__main__":
    with explained():
        for name in sys.argv[1:]:
            print(json.dumps({"file": name, **job(Path(name))}, indent=2))
