"""Patches that wait in a file equal those that were kept, and nothing is left of the file."""

from pathlib import Path

import torch

from lamina.models.boundary import Patch
from lamina.repairs.patch_store import FiledPatch, PatchStore

CPU = torch.device("cpu")


def three_patches() -> list[Patch]:
    """An affine one of 72 numbers, one in two factors, and one in another type."""
    torch.manual_seed(0)
    affine = Patch(torch.randn(8, 8), torch.randn(8))
    factors = Patch(down=torch.randn(8, 2), up=torch.randn(2, 8))
    return [affine, factors, Patch(torch.eye(8).double())]


def test_patches_without_room_in_memory_wait_in_a_file(tmp_path: Path) -> None:
    room_for_first = 4 * 72
    store = PatchStore(tmp_path, max_bytes=room_for_first)

    stored_patches = [store.keep(patch) for patch in three_patches()]

    in_file = [isinstance(patch, FiledPatch) for patch in stored_patches]
    assert in_file == [False, True, True]
    stream = torch.randn(3, 8)
    for patch, stored in zip(three_patches(), stored_patches, strict=True):
        assert stored.tensors.keys() == patch.tensors.keys()
        for name, tensor in patch.tensors.items():
            assert torch.equal(stored.tensors[name], tensor.float())
        expected = patch.to(CPU, torch.float32).repaired(stream)
        assert torch.equal(stored.to(CPU, torch.float32).repaired(stream), expected)


def test_a_killed_search_leaves_no_file(tmp_path: Path) -> None:
    """The file has no name."""
    store = PatchStore(tmp_path, max_bytes=0)

    store.keep(three_patches()[0])

    assert not list(tmp_path.iterdir())


def test_a_patch_outlives_its_store() -> None:
    stored = PatchStore(max_bytes=0).keep(three_patches()[0])

    assert torch.equal(stored.tensors["operator"], three_patches()[0].matrix)
