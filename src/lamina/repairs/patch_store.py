"""Keeps patches until the passes that apply them: in memory up to a budget, the others in a file.

A search fits a patch of C² numbers for every run of layers that one of its sets removes. There are
hundreds of them, 67 MB each at C = 4096. A pass reads each patch from the file once, and frees it
when the layer that it repairs has run.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch

from lamina.engine.budgets import PATCH_BYTES
from lamina.models.boundary import Patch

FLOAT32_BYTES = 4


class KeptTensor(NamedTuple):
    """The location of a float32 tensor in a file."""

    first_byte: int
    shape: torch.Size


@dataclass(frozen=True, eq=False)
class FiledPatch(Patch):
    """A patch whose tensors are read from an open file whenever they are needed.

    The file stays open as long as one of its patches exists.
    """

    file: FileIO | None = None
    stored_tensors: Mapping[str, KeptTensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The patch's tensors by name, read from the file."""
        assert self.file is not None
        return {
            name: _read_tensor(self.file, stored) for name, stored in self.stored_tensors.items()
        }

    def to(self, device: torch.device, dtype: torch.dtype) -> Patch:
        """A patch in memory, on a device and for weights of a dtype."""
        return Patch(**self.tensors).to(device, dtype)


class PatchStore:
    """Keeps patches in float32: on a device while there is room for them, the others in a file.

    folder: The folder of the file; by default that of temporary files. The file has no name, so
        that nothing of it is left however the process ends.
    max_bytes: The limit of all patches on the device together.
    """

    def __init__(
        self,
        folder: Path | None = None,
        max_bytes: int = PATCH_BYTES,
        device: torch.device | None = None,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._device = device or torch.device("cpu")
        self._used_bytes = 0
        self._file: FileIO | None = None

    def keep(self, patch: Patch) -> Patch:
        """Store a patch on the device or in the file, and return it from there."""
        n_bytes = FLOAT32_BYTES * sum(tensor.numel() for tensor in patch.tensors.values())
        if self._used_bytes + n_bytes <= self._max_bytes:
            self._used_bytes += n_bytes
            return patch.to(self._device, torch.float32)
        return self._write_patch(patch.to(torch.device("cpu"), torch.float32))

    def _write_patch(self, patch: Patch) -> FiledPatch:
        if self._file is None:
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            self._file = cast(FileIO, file)
        stored_tensors: dict[str, KeptTensor] = {}
        for name, tensor in patch.tensors.items():
            first_byte = self._file.seek(0, os.SEEK_END)
            stored_tensors[name] = KeptTensor(first_byte, tensor.shape)
            tensor.numpy().tofile(self._file)
        return FiledPatch(file=self._file, stored_tensors=stored_tensors)


def _read_tensor(file: FileIO, stored_tensor: KeptTensor) -> torch.Tensor:
    """A tensor whose bytes are read from the file as they are needed."""
    numbers = np.memmap(
        file, np.float32, mode="c", offset=stored_tensor.first_byte, shape=stored_tensor.shape
    )
    return torch.from_numpy(numbers)
