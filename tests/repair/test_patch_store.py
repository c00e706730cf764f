"""Patches that wait in a file are those that were kept, and nothing is left of the file."""

from pathlib import Path

import torch

from lamina.models.boundary import Patch
from lamina.repair.patch_store import FiledPatch, PatchStore

CPU = torch.device("cpu")


def patches() -> list[Patch]:
    torch.manual_seed(0)
    full = Patch(torch.randn(8, 8), torch.randn(8))
    return [full, Patch(down=torch.randn(8, 2), up=torch.randn(2, 8)), Patch(torch.eye(8).double())]


def test_what_has_no_room_in_memory_waits_in_a_file(tmp_path: Path) -> None:
    """Room for the first one of 72 numbers of four bytes, and for nothing else."""
    store = PatchStore(tmp_path, max_bytes=4 * 72)
    kept = [store.keep(patch) for patch in patches()]
    assert [isinstance(patch, FiledPatch) for patch in kept] == [False, True, True]
    stream = torch.randn(3, 8)
    for patch, waited in zip(patches(), kept, strict=True):
        assert waited.tensors.keys() == patch.tensors.keys()
        for name, tensor in patch.tensors.items():
            assert torch.equal(waited.tensors[name], tensor.float())
        expected = patch.to(CPU, torch.float32).repaired(stream)
        assert torch.equal(waited.to(CPU, torch.float32).repaired(stream), expected)
    assert not list(tmp_path.iterdir()), "the file has no name, so a killed search leaves none"


def test_a_patch_outlives_its_store() -> None:
    kept = PatchStore(max_bytes=0).keep(patches()[0])
    assert torch.equal(kept.tensors["operator"], patches()[0].matrix)
