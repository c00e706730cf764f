"""The pretended device behaves as a GPU does where the tests of stages rely on it."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.device.pretended import Placed, pretended

CUDA = torch.device("cuda", 0)


def test_it_computes_what_the_cpu_computes_and_says_where() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with pretended():
        found = functional.softmax(a.to("cuda") @ b.cuda(), -1)
        assert (
            isinstance(found, Placed)
            and found.device == CUDA
            and found.is_cuda
            and not found.is_cpu
        )
        assert torch.equal(found.cpu(), functional.softmax(a @ b, -1))
        assert torch.zeros(2, device="cuda").device == torch.tensor([1], device=CUDA).device == CUDA
        assert torch.zeros(2).device.type == "cpu"
        assert found.to(CUDA) is found and found.to(CUDA, copy=True) is not found


MIXED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "sum": lambda here, there: there + here,
    "product of matrices": lambda here, there: there @ here,
    "in place": lambda here, there: there.add_(here),
    "list": lambda here, there: torch.cat([there, here]),
    "list of numbers": lambda here, there: torch.stack([there[0, 0], here[0, 0]]),
    "choice": lambda here, there: torch.where(here > 0, there, there),
    "index of a device into the host": lambda here, there: here[there.long()[0].clamp(0, 1)],
    "gather": lambda here, there: there.gather(1, here.long().clamp(0, 1)),
    "embedding": lambda here, there: functional.embedding(here.long().clamp(0, 1), there),
    "attention": lambda here, there: functional.scaled_dot_product_attention(
        there[None], here[None], there[None]
    ),
    "another device": lambda here, there: there + here.to("cuda:1"),
}


@pytest.mark.parametrize("mistake", MIXED)
def test_operands_in_different_places_are_refused(mistake: str) -> None:
    with pretended(1 << 20, 1 << 20):
        here, there = torch.randn(3, 3), torch.randn(3, 3).cuda()
        with pytest.raises(RuntimeError, match="same device"):
            MIXED[mistake](here, there)


def test_numbers_and_indices_of_the_host_are_taken_as_a_gpu_takes_them() -> None:
    with pretended() as machine:
        there = torch.arange(6.0).cuda().reshape(2, 3)
        assert (there * torch.tensor(2.0)).tolist() == [[0, 2, 4], [6, 8, 10]]
        sent = machine.sent
        assert there[[1, 0], torch.tensor([0, 2])].tolist() == [3, 2]
        assert machine.sent == sent + 2
        there[:, [0, 2]] = 9
        assert there.tolist() == [[9, 1, 9], [9, 4, 9]]


def test_numpy_is_refused() -> None:
    with pretended():
        x = torch.ones(2, device="cuda")
        for look in (x.numpy, x.__array__):
            with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
                look()


def test_memory_is_counted_by_storage_and_given_back() -> None:
    with pretended(1 << 20) as machine:
        (card,) = machine.cards
        x = torch.zeros(100, 10, device="cuda")
        assert card.alive == torch.cuda.memory_allocated() == 4096  # blocks of 512 bytes
        view = x[10:20].view(-1)
        assert card.alive == 4096
        del x
        assert card.alive == 4096 and view.sum().item() == 0
        del view
        assert card.alive == 0 and card.peak == 4096 + 512
        assert torch.cuda.mem_get_info() == (1 << 20, 1 << 20)


def test_what_autograd_keeps_is_alive() -> None:
    with pretended(1 << 20) as machine:
        (card,) = machine.cards
        x = torch.ones(1024, device="cuda", requires_grad=True)
        loss = x.exp().exp().sum()
        assert card.alive == 3 * 4096 + 512  # the sum and what both exponentials keep
        loss.backward()
        assert x.grad is not None and x.grad.device == CUDA
        del loss
        assert card.alive == 2 * 4096


def test_the_allocation_that_passes_the_limit_is_refused() -> None:
    with pretended(8192, 1 << 20) as machine:
        x = torch.zeros(1024, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="cuda:0 has 8192 bytes"):
            torch.stack([x, x])
        assert machine.cards[0].failed == torch.cuda.memory_stats()["num_ooms"] == 1
        assert machine.cards[0].alive == 4096
        torch.stack([x.to("cuda:1")] * 2)
        x + x
