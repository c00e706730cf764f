"""The pretended device behaves as a GPU does where the tests of stages rely on it."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.device.pretended import Placed, pretend_devices

CUDA = torch.device("cuda", 0)
KIB = 1 << 10
MIB = 1 << 20


def test_it_computes_what_the_cpu_computes() -> None:
    left = torch.randn(3, 4)
    right = torch.randn(4, 5)
    expected = functional.softmax(left @ right, -1)

    with pretend_devices():
        result = functional.softmax(left.to("cuda") @ right.cuda(), -1)
        assert torch.equal(result.cpu(), expected)


def test_a_tensor_says_on_which_device_it_is() -> None:
    with pretend_devices():
        tensor = torch.zeros(2, device="cuda")
        assert isinstance(tensor, Placed)
        assert tensor.device == CUDA
        assert tensor.is_cuda
        assert not tensor.is_cpu
        assert torch.tensor([1], device=CUDA).device == CUDA
        assert torch.zeros(2).device.type == "cpu"


def test_a_tensor_that_is_on_the_device_is_not_copied_unless_requested() -> None:
    with pretend_devices():
        tensor = torch.zeros(2, device="cuda")
        assert tensor.to(CUDA) is tensor
        assert tensor.to(CUDA, copy=True) is not tensor


# Operations on a tensor of the host and one of the first device.
MIXED_OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "sum": lambda host, cuda: cuda + host,
    "product of matrices": lambda host, cuda: cuda @ host,
    "in place": lambda host, cuda: cuda.add_(host),
    "list": lambda host, cuda: torch.cat([cuda, host]),
    "list of numbers": lambda host, cuda: torch.stack([cuda[0, 0], host[0, 0]]),
    "choice": lambda host, cuda: torch.where(host > 0, cuda, cuda),
    "index of a device into the host": lambda host, cuda: host[cuda.long()[0].clamp(0, 1)],
    "gather": lambda host, cuda: cuda.gather(1, host.long().clamp(0, 1)),
    "embedding": lambda host, cuda: functional.embedding(host.long().clamp(0, 1), cuda),
    "attention": lambda host, cuda: functional.scaled_dot_product_attention(
        cuda[None], host[None], cuda[None]
    ),
    "another device": lambda host, cuda: cuda + host.to("cuda:1"),
}


@pytest.mark.parametrize("name", MIXED_OPERATIONS)
def test_operands_on_different_devices_are_refused(name: str) -> None:
    with pretend_devices(MIB, MIB):
        host = torch.randn(3, 3)
        cuda = torch.randn(3, 3).cuda()
        with pytest.raises(RuntimeError, match="same device"):
            MIXED_OPERATIONS[name](host, cuda)


def test_a_number_of_the_host_may_be_an_operand() -> None:
    with pretend_devices():
        tensor = torch.arange(6.0).cuda().reshape(2, 3)
        assert (tensor * torch.tensor(2.0)).tolist() == [[0, 2, 4], [6, 8, 10]]


def test_indices_of_the_host_are_sent_to_the_device() -> None:
    with pretend_devices() as machine:
        tensor = torch.arange(6.0).cuda().reshape(2, 3)
        n_sent_before = machine.n_sent
        assert tensor[[1, 0], torch.tensor([0, 2])].tolist() == [3, 2]
        assert machine.n_sent == n_sent_before + 2

        tensor[:, [0, 2]] = 9
        assert tensor.tolist() == [[9, 1, 9], [9, 4, 9]]


def test_numpy_is_refused() -> None:
    message = "can't convert cuda:0 device type tensor to numpy"
    with pretend_devices():
        tensor = torch.ones(2, device="cuda")
        with pytest.raises(TypeError, match=message):
            tensor.numpy()
        with pytest.raises(TypeError, match=message):
            tensor.__array__()


def test_memory_is_counted_by_storage_and_freed_with_the_last_view() -> None:
    with pretend_devices(MIB) as machine:
        (card,) = machine.cards
        tensor = torch.zeros(100, 10, device="cuda")
        assert card.alive == 4 * KIB  # 4000 bytes in blocks of 512
        assert torch.cuda.memory_allocated() == 4 * KIB

        view = tensor[10:20].view(-1)
        assert card.alive == 4 * KIB
        del tensor
        assert card.alive == 4 * KIB
        assert view.sum().item() == 0
        del view
        assert card.alive == 0
        assert card.peak == 4 * KIB + 512  # with the sum
        assert torch.cuda.mem_get_info() == (MIB, MIB)


def test_what_autograd_keeps_is_alive() -> None:
    with pretend_devices(MIB) as machine:
        (card,) = machine.cards
        tensor = torch.ones(1024, device="cuda", requires_grad=True)
        loss = tensor.exp().exp().sum()
        # The tensor, what both exponentials keep, and the sum.
        assert card.alive == 3 * 4 * KIB + 512

        loss.backward()
        assert tensor.grad is not None
        assert tensor.grad.device == CUDA
        del loss
        assert card.alive == 2 * 4 * KIB


def test_the_allocation_that_passes_the_limit_is_refused() -> None:
    with pretend_devices(8 * KIB, MIB) as machine:
        (small_card, _) = machine.cards
        tensor = torch.zeros(1024, device="cuda")

        with pytest.raises(torch.cuda.OutOfMemoryError, match="cuda:0 has 8192 bytes"):
            torch.stack([tensor, tensor])

        assert small_card.n_failed == 1
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        assert small_card.alive == 4 * KIB
        large_tensor = torch.stack([tensor.to("cuda:1")] * 2)
        assert large_tensor.device == torch.device("cuda", 1)
        assert (tensor + tensor).device == CUDA
