"""The progress of a job on disk, from which a killed job resumes with the same results."""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lamina.errors import LaminaError
from lamina.store import parquet

SECONDS = 30.0  # between two saves of work that could be saved at any time
_FACTS = "facts.json"


class Progress:
    """One safetensors file with tensors, and with facts as JSON in one more tensor.

    `key` is a digest of all settings. A file with another key counts as missing, so that a job with
    other settings starts again.
    """

    def __init__(self, file: str | Path, key: str) -> None:
        self.file = Path(file)
        self.key = key
        self._saved_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether the last `save` is long enough ago that another one is worth its time."""
        return time.monotonic() - self._saved_at >= SECONDS

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and facts of the last `save`; None if there is none."""
        if not self.file.is_file():
            return None
        try:
            with (
                parquet.explaining_damage(self.file),
                safe_open(str(self.file), framework="pt") as handle,
            ):
                metadata = parquet.tensors_metadata(handle)
                if metadata.get("key") != self.key:
                    return None
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
                facts = json.loads(tensors.pop(_FACTS).numpy().tobytes())
                return tensors, facts
        except LaminaError:
            return None  # a damaged file costs only the time to repeat its work

    def save(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the saved state atomically: a kill leaves either the old or the new state."""
        saved_tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
        }
        # The metadata must stay short, because the checksum is looked for at the beginning of
        # the file. So the facts are a tensor.
        encoded_facts = bytearray(json.dumps(facts).encode())
        saved_tensors[_FACTS] = torch.frombuffer(encoded_facts, dtype=torch.uint8)
        parquet.write_tensors(self.file, saved_tensors, {"key": self.key})
        self._saved_at = time.monotonic()

    def remove(self) -> None:
        """Delete the file after the results are written."""
        half_written = self.file.parent.glob(f".{self.file.name}.*.tmp")
        for file in (self.file, *half_written):
            file.unlink(missing_ok=True)


def digest_settings(settings: Mapping[str, Any], *files: str | Path) -> str:
    """A hash of settings (JSON-able) and of the contents of files."""
    settings_text = json.dumps([settings, torch.__version__], sort_keys=True)
    sha256 = hashlib.sha256(settings_text.encode())
    for file in files:
        with Path(file).open("rb") as handle:
            sha256.update(hashlib.file_digest(handle, "sha256").digest())
    return sha256.hexdigest()
