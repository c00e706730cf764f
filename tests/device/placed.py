"""Tensors that claim to be on `cuda:N`, and the memory of these devices (see pretended.py)."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode

HOST = torch.device("cpu")
NOWHERE = torch.device("meta")  # what C++ takes for the device of a placed tensor
GIB = 1 << 30

_BLOCK_BYTES = 512  # CUDA's allocator rounds up to these
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_RESHAPING = {
    "aten::squeeze_",
    "aten::unsqueeze_",
    "aten::t_",
    "aten::transpose_",
    "aten::as_strided_",
}


class _Block:
    """The memory of one storage, which is freed with the last tensor on it.

    Tensors that C++ makes on the way are on no device (`meta`) until an operation writes into them
    what is on one.
    """

    def __init__(self, device: torch.device, n_bytes: int) -> None:
        self.device = NOWHERE
        self.n_bytes = n_bytes
        self.card: Card | None = None
        self.settle(device)

    def settle(self, device: torch.device) -> None:
        """Take memory of a device."""
        if device == NOWHERE or current is None:
            return
        card = current.cards[device.index]
        card.allocate(self.n_bytes)
        self.device = device
        self.card = card

    def __del__(self) -> None:
        if self.card is not None:
            self.card.alive -= self.n_bytes


@dataclass
class Card:
    """One pretended device.

    memory: its bytes; an allocation that passes them raises `torch.cuda.OutOfMemoryError`.
    alive, peak: bytes of the tensors that it has now, and at most since `peak` was reset.
    n_failed: refused allocations.
    """

    index: int
    memory: int
    alive: int = 0
    peak: int = 0
    n_failed: int = 0

    def allocate(self, n_bytes: int) -> None:
        """Raise `torch.cuda.OutOfMemoryError` where a real device would."""
        if self.alive + n_bytes > self.memory:
            self.n_failed += 1
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {n_bytes} bytes. cuda:{self.index} has "
                f"{self.memory} bytes, of which {self.alive} are in use. (A pretended device.)"
            )
        self.alive += n_bytes
        self.peak = max(self.peak, self.alive)


@dataclass
class Machine:
    """The pretended devices; `n_sent` counts copies from the host to a device."""

    cards: list[Card]
    n_sent: int = 0
    blocks: Any = field(default_factory=weakref.WeakValueDictionary)  # by address of the storage

    def find_card(self, device: Any = None) -> Card:
        """The card that a user names with nothing, a number, a text or a torch.device."""
        if device is None:
            return self.cards[0]
        if isinstance(device, int):
            return self.cards[device]
        return self.cards[torch.device(device).index or 0]


current: Machine | None = None
# Torch caches these for ever: to be the true ones, and not those that pretended.py puts there.
_device._device_constructors()


class Placed(torch.Tensor):
    """A tensor on a pretended device; `held` is the CPU's tensor with its values."""

    held: torch.Tensor
    block: _Block

    # Python reads these; C++ does not.
    device = property(lambda self: self.block.device)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = is_meta = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> "Placed":
        """Take memory of the device, unless the tensor is a view of what is there."""
        make_wrapper: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        tensor: Any = make_wrapper(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=NOWHERE,
        )
        tensor.held = held
        tensor.block = _find_block(held, device)
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})

    def get_device(self) -> int:
        return int(self.device.index)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __getitem__(self, index: Any) -> torch.Tensor:
        placed_index = _place_index(index, self.device)
        return super().__getitem__(placed_index)  # type: ignore[no-any-return, misc]

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_place_index(index, self.device), value)  # type: ignore[misc]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def new_tensor(
        self, values: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Any:
        tensor = torch.tensor(values, dtype=dtype or self.dtype, device=device or self.device)
        return tensor.requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Placed":
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        with torch.no_grad():
            copied: Any = self.detach().clone()
        if getattr(self, "_is_param", False):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Placed({self.held}, {self.device})"


def _find_block(held: torch.Tensor, device: torch.device) -> _Block:
    """The block of a tensor's storage, which is a new one unless the tensor is a view."""
    assert current is not None
    storage = held.untyped_storage()
    address = storage.data_ptr()
    block: _Block | None = current.blocks.get(address) if storage.nbytes() else None
    if block is not None:
        return block
    n_blocks = -(-storage.nbytes() // _BLOCK_BYTES)
    block = _Block(device, n_blocks * _BLOCK_BYTES)
    if n_blocks:
        current.blocks[address] = block
    return block


def _place_index(index: Any, device: torch.device) -> Any:
    """An index whose lists are tensors on a device.

    C++ would make tensors of them on what it takes for the device.
    """
    if isinstance(index, (list, np.ndarray)):
        return torch.tensor(index, device=device)
    if isinstance(index, tuple):
        # Only one level deep: a tuple inside is no index.
        return tuple(
            torch.tensor(entry, device=device) if isinstance(entry, (list, np.ndarray)) else entry
            for entry in index
        )
    return index


def _with_index(device: torch.device) -> torch.device:
    """`cuda` is `cuda:0`."""
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def held_by(value: Any) -> Any:
    """An argument of an operation, as the operation on the CPU gets it."""
    if isinstance(value, Placed):
        return value.held
    if isinstance(value, torch.device):
        return HOST
    if type(value) in (list, tuple):
        return type(value)(map(held_by, value))
    return value


@dataclass(frozen=True)
class _Argument:
    """An argument into which an operation writes."""

    index: int
    name: str
    is_keyword_only: bool

    def value(self, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.is_keyword_only or self.index >= len(args):
            return kwargs.get(self.name)
        return args[self.index]


@dataclass(frozen=True)
class _Operation:
    """An operation: whether it is made of others, and which arguments it writes into."""

    name: str
    is_composite: bool
    written: tuple[_Argument, ...]

    @staticmethod
    @cache
    def of(function: Any) -> "_Operation":
        """Read from its schema, once."""
        written = []
        for index, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.append(_Argument(index, argument.name, argument.kwarg_only))
        return _Operation(function._schema.name, function._can_decompose(), tuple(written))


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation with tensors of pretended devices, or one that makes a tensor there."""
    operation = _Operation.of(function)
    operands = _Operands.of([*args, *kwargs.values()])
    requested_device = kwargs.get("device")
    if not operands.has_placed and not _is_for_device(requested_device, operands):
        return function(*args, **kwargs)

    assert current is not None, "a tensor of a pretended device outlived it"
    if operation.is_composite:
        # In inference mode these come whole; outside of it autograd has taken them apart.
        with Operations():
            result = function.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if operation.name == "aten::_to_copy":
        return _copy(function, args[0], kwargs)
    if operation.name == "aten::copy_":
        return _copy_into(function, args, kwargs)
    return _run_on_cpu(function, operation, operands, args, kwargs)


def _is_for_device(requested_device: torch.device | None, operands: "_Operands") -> bool:
    """Whether an operation without placed operands makes a tensor on a pretended device."""
    if requested_device is None or requested_device.type == "cpu":
        return False
    if requested_device.type == "meta":
        # Truly meta where a tensor is, or where a `with torch.device("meta")` is open.
        return not operands.tensors and _device.CURRENT_DEVICE != NOWHERE
    return True


def _run_on_cpu(
    function: Any, operation: _Operation, operands: "_Operands", args: Any, kwargs: dict[str, Any]
) -> Any:
    """Run the CPU's kernel on what the operands hold, and place its result."""
    assert current is not None
    device = common_device(operation.name, args, operands)
    requested_device = kwargs.get("device")
    if requested_device is not None and requested_device.type == "cpu":
        device = HOST
    elif requested_device is not None and requested_device.type == "cuda":
        device = _with_index(requested_device)
    if operation.name in _INDEXING:
        current.n_sent += sum(
            index is not None and not isinstance(index, Placed) for index in args[1]
        )

    held_args = [held_by(argument) for argument in args]
    held_kwargs = {name: held_by(argument) for name, argument in kwargs.items()}
    if operation.name == "aten::histc":
        held_args[0] = held_args[0].double()  # a GPU counts other types too
    result = function(*held_args, **held_kwargs)
    if device == HOST:
        return result
    if operation.name in _RESHAPING:
        # C++ keeps a shape of its own for the tensor outside.
        with torch._C._DisableTorchDispatch():
            return function(*args, **kwargs)

    written_by_held = {}
    for argument in operation.written:
        tensor = argument.value(args, kwargs)
        if isinstance(tensor, Placed):
            if tensor.device == NOWHERE:
                tensor.block.settle(device)
            written_by_held[id(tensor.held)] = tensor
    if isinstance(result, torch.Tensor) and id(result) in written_by_held:
        return written_by_held[id(result)]
    if isinstance(result, (tuple, list)):
        return type(result)([_place_result(entry, device) for entry in result])
    return _place_result(result, device)


def _place_result(result: Any, device: torch.device) -> Any:
    return Placed(result, device) if isinstance(result, torch.Tensor) else result


@dataclass(frozen=True)
class _Operands:
    """The tensors of an operation, and the identities of those that stand in lists."""

    tensors: list[torch.Tensor]
    in_lists: set[int]

    @staticmethod
    def of(arguments: Sequence[Any]) -> "_Operands":
        tensors: list[torch.Tensor] = []
        in_lists: set[int] = set()
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                tensors.append(argument)
            elif isinstance(argument, (list, tuple)):
                listed = [entry for entry in argument if isinstance(entry, torch.Tensor)]
                tensors += listed
                in_lists |= {id(tensor) for tensor in listed}
        return _Operands(tensors, in_lists)

    @property
    def has_placed(self) -> bool:
        return any(isinstance(tensor, Placed) for tensor in self.tensors)


def operands_of(*tensors: torch.Tensor) -> _Operands:
    return _Operands.of(tensors)


def common_device(name: str, args: Any, operands: _Operands) -> torch.device:
    """Where an operation runs; raises if its operands are on different devices.

    With tensors of a device, a number may come from the host unless it stands in a list, and
    indices may.
    """
    devices = set()
    for tensor in operands.tensors:
        if isinstance(tensor, Placed):
            devices.add(tensor.device)
            continue
        assert tensor.device != NOWHERE, f"{name} of a tensor without values"
        is_listed = id(tensor) in operands.in_lists
        if name in _INDEXING:
            may_be_on_host = is_listed and tensor is not args[0]
        else:
            may_be_on_host = tensor.dim() == 0 and not is_listed
        if not may_be_on_host:
            devices.add(HOST)
    devices.discard(NOWHERE)
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(map(str, devices)))}! ({name}; a pretended device)"
        )
    return devices.pop() if devices else NOWHERE


def _copy(function: Any, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """A copy with another type or on another device."""
    source = tensor.device
    requested_device = kwargs.get("device")
    target = source if requested_device is None else _with_index(requested_device)
    if target == NOWHERE and source != HOST:
        target = source
    if target == NOWHERE:
        return function(tensor, **kwargs)  # type: ignore[no-any-return]
    copied: torch.Tensor = function(held_by(tensor), **{**kwargs, "device": HOST})
    _count_sent(source, target)
    return copied if target == HOST else Placed(copied, target)


def _copy_into(function: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    target = args[0]
    source = args[1]
    if isinstance(target, Placed) and target.device == NOWHERE and isinstance(source, Placed):
        target.block.settle(source.device)
    function(held_by(target), held_by(source), *args[2:], **kwargs)
    _count_sent(source.device, target.device)
    return target  # type: ignore[no-any-return]


def _count_sent(source: torch.device, target: torch.device) -> None:
    """Count what the host sends to a device."""
    assert current is not None
    current.n_sent += source == HOST and target not in (HOST, NOWHERE)


class Operations(TorchDispatchMode):
    """While open, operations without a placed operand can make a placed tensor too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class _CopyWithGradient(torch.autograd.Function):
    """A copy to another device whose gradient is copied back.

    C++ would not know from which device the tensor came.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, target: torch.device, dtype: Any) -> torch.Tensor:
        ctx.source = tensor.device
        ctx.dtype = tensor.dtype
        return tensor.to(target, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].to(ctx.source, ctx.dtype), None, None


def tensor_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to`; C++'s own one asks itself whether a tensor is on the target already."""
    copy = kwargs.pop("copy", False)
    options: dict[str, Any] = {}
    if "other" in kwargs or (args and isinstance(args[0], torch.Tensor)):
        other = args[0] if args else kwargs.pop("other")
        requested_device = other.device
        dtype = other.dtype
    else:
        parsed = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
        requested_device, dtype, non_blocking, memory_format = parsed
        options["non_blocking"] = non_blocking
        if memory_format is not None:
            options["memory_format"] = memory_format

    source = self.device
    target = source if requested_device is None else _with_index(requested_device)
    if target == source and dtype in (None, self.dtype) and not copy:
        return self
    needs_gradient = self.requires_grad and torch.is_grad_enabled()
    if target != source and isinstance(self, Placed) and needs_gradient:
        return _CopyWithGradient.apply(self, target, dtype)  # type: ignore[no-any-return]
    options["device"] = target
    if dtype is not None:
        options["dtype"] = dtype
    return torch.ops.aten._to_copy.default(self, **options)  # type: ignore[no-any-return]


def make_on_host_first(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function like `torch.tensor` that makes its tensor on the host and sends it on."""

    def make_and_send(
        values: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        if device is None:
            device = values.device if isinstance(values, torch.Tensor) else _device.CURRENT_DEVICE
        if isinstance(values, Placed):
            tensor: torch.Tensor = values.detach().clone()
        elif torch.device(device or HOST).type != "cuda":
            on_host = make(values, *args, device=device, **kwargs)
            return on_host.requires_grad_(requires_grad)
        else:
            tensor = make(values, *args, **kwargs)
        sent = tensor.to(device=device, dtype=kwargs.get("dtype"))
        return sent.requires_grad_(requires_grad)

    return make_and_send
