"""Patches that wait for the passes that apply them: in memory up to a budget, the others in a file.

A search fits a patch of C² numbers for every run of layers that one of its sets lacks: hundreds of them, 67 MB each at
C = 4096. A pass reads each patch from the file once, and keeps it no longer than the layer that it repairs.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import cast

import torch

from lamina.engine.budgets import PATCHES
from lamina.models.boundary import Patch

_WIDTH = 4  # bytes of a number
_READ = 1 << 30  # bytes of one read; the system reads a little under 2 GiB at once


@dataclass(frozen=True, eq=False)
class FiledPatch(Patch):
    """A patch whose tensors are read from an open file whenever they are needed.

    `layout` has for each tensor its first byte in the file and its shape. The file is open as long as a patch has it.
    """

    file: FileIO | None = None
    layout: Mapping[str, tuple[int, torch.Size]] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        assert self.file is not None
        return {name: _read(self.file, *where) for name, where in self.layout.items()}

    def to(self, device: torch.device, dtype: torch.dtype) -> Patch:
        return Patch(**self.tensors).to(device, dtype)


class PatchStore:
    """Keeps patches in float32: on a device while all of them take at most `memory` bytes, the others in a file.

    The file has no name, so that nothing of it is left when the process ends, in whatever way. It lies in `folder`, by
    default in the one for temporary files.
    """

    def __init__(
        self,
        folder: Path | None = None,
        memory: int = PATCHES,
        device: torch.device | None = None,
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._device = device or torch.device("cpu")
        self._held = 0
        self._file: FileIO | None = None

    def keep(self, patch: Patch) -> Patch:
        """The same patch, where it may wait."""
        size = _WIDTH * sum(tensor.numel() for tensor in patch.tensors.values())
        if self._held + size <= self._memory:
            self._held += size
            return patch.to(self._device, torch.float32)
        return self._written(patch.to(torch.device("cpu"), torch.float32))

    def _written(self, patch: Patch) -> FiledPatch:
        if self._file is None:
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            self._file = cast(FileIO, file)
        layout: dict[str, tuple[int, torch.Size]] = {}
        for name, tensor in patch.tensors.items():
            layout[name] = self._file.seek(0, os.SEEK_END), tensor.shape
            left = memoryview(tensor.contiguous().numpy()).cast("B")
            while left:
                left = left[self._file.write(left) :]
        return FiledPatch(file=self._file, layout=layout)


def _read(file: FileIO, first: int, shape: torch.Size) -> torch.Tensor:
    """The float32 tensor of this shape that begins at a byte of an open file."""
    buffer = bytearray(_WIDTH * shape.numel())
    left = memoryview(buffer)
    while left:
        count = os.preadv(file.fileno(), [left[:_READ]], first)
        if not count:
            raise OSError("the file of a search's patches has lost its end")
        left = left[count:]
        first += count
    return torch.frombuffer(buffer, dtype=torch.float32).view(shape)
