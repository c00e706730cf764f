"""Tensors that say they are on `cuda:N`, and the memory of the devices that they stand on (see pretended.py)."""

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
NOWHERE = torch.device("meta")  # what C++ takes a placed tensor's device for
GIB = 1 << 30
_BLOCK = 512  # bytes that CUDA's allocator rounds up to

_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}

_RESHAPING = {f"aten::{name}_" for name in ("squeeze", "unsqueeze", "t", "transpose", "as_strided")}


class _Block:
    """The memory of one storage, given back when the last tensor on it is gone, and the place of all of them.

    What C++ makes on the way has no place (`meta`) before something of a device is written into it.
    """

    def __init__(self, place: torch.device, size: int) -> None:
        self.place, self.size = NOWHERE, size
        self.card: Card | None = None
        self.settle(place)

    def settle(self, place: torch.device) -> None:
        """Take the memory of a place."""
        if place != NOWHERE and current is not None:
            card = current.cards[place.index]
            card.take(self.size)
            self.place, self.card = place, card

    def __del__(self) -> None:
        if self.card is not None:
            self.card.alive -= self.size


@dataclass
class Card:
    """One pretended device.

    memory: its bytes; an allocation that passes them raises `torch.cuda.OutOfMemoryError`.
    alive, peak: bytes of tensors that are there now, and the most that there were since `peak` was reset.
    failed: allocations that were refused.
    """

    number: int
    memory: int
    alive: int = 0
    peak: int = 0
    failed: int = 0

    def take(self, size: int) -> None:
        """Allocate; raises where real memory would be used up."""
        if self.alive + size > self.memory:
            self.failed += 1
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes. cuda:{self.number} has {self.memory} bytes, of "
                f"which {self.alive} are in use. (A pretended device.)"
            )
        self.alive += size
        self.peak = max(self.peak, self.alive)


@dataclass
class Machine:
    """What tests ask of the pretended devices; `sent` counts copies from the host to a device."""

    cards: list[Card]
    sent: int = 0
    blocks: Any = field(default_factory=weakref.WeakValueDictionary)

    def card(self, place: Any = None) -> Card:
        """The device that a user names: nothing, a number, a text or a torch.device."""
        if isinstance(place, int):
            return self.cards[place]
        return self.cards[(torch.device(place).index or 0) if place is not None else 0]


current: Machine | None = None
_device._device_constructors()  # which torch remembers for ever: as they are, not as they are replaced below


class Placed(torch.Tensor):
    """A tensor on a pretended device; `held` is the CPU's tensor with its values."""

    held: torch.Tensor
    block: _Block

    # C++ sees none of these.
    place = device = property(lambda self: self.block.place)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = is_meta = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: torch.Tensor, place: torch.device) -> "Placed":
        """Take memory on the place, unless the tensor looks into memory that is taken."""
        form = dict(
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
        )
        make: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made: Any = make(cls, held.shape, **form, device=NOWHERE)
        made.held, made.block = held, _block(held, place)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})

    def get_device(self) -> int:
        return int(self.place.index)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"can't convert {self.place} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(_tensors(index, self.place))  # type: ignore[no-any-return, misc]

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_tensors(index, self.place), value)  # type: ignore[misc]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def new_tensor(
        self, values: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Any:
        made = torch.tensor(values, dtype=dtype or self.dtype, device=device or self.place)
        return made.requires_grad_(requires_grad)

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
        return f"Placed({self.held}, {self.place})"


def _block(held: torch.Tensor, place: torch.device) -> _Block:
    assert current is not None
    storage = held.untyped_storage()
    found: _Block | None = current.blocks.get(storage.data_ptr()) if storage.nbytes() else None
    if found is None:
        found = _Block(place, -(-storage.nbytes() // _BLOCK) * _BLOCK)
        if found.size:
            current.blocks[storage.data_ptr()] = found
    return found


def _tensors(index: Any, place: torch.device) -> Any:
    """An index whose lists are tensors on a device: from them C++ makes tensors on what it takes for the device."""
    if isinstance(index, tuple):
        return tuple(
            _tensors(each, place) if isinstance(each, (list, np.ndarray)) else each
            for each in index
        )
    return torch.tensor(index, device=place) if isinstance(index, (list, np.ndarray)) else index


def _numbered(place: torch.device) -> torch.device:
    return torch.device("cuda", place.index or 0) if place.type == "cuda" else place


def place_of(tensor: torch.Tensor) -> torch.device:
    return tensor.place if isinstance(tensor, Placed) else tensor.device


def held_by(value: Any) -> Any:
    """What an operation on the CPU is given for a value."""
    if isinstance(value, Placed):
        return value.held
    if isinstance(value, torch.device):
        return HOST
    return type(value)(map(held_by, value)) if type(value) in (list, tuple) else value


@dataclass(frozen=True)
class _Known:
    """What is to be known of an operation: whether it is made of others, and which arguments it writes into."""

    name: str
    composite: bool
    written: tuple[tuple[int, str, bool], ...]

    @staticmethod
    @cache
    def of(function: Any) -> "_Known":
        """Read from its schema, once."""
        name, arguments = function._schema.name, function._schema.arguments
        written = [
            (number, argument.name, argument.kwarg_only)
            for number, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return _Known(name, function._can_decompose(), tuple(written))


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation with tensors of pretended devices, or one that makes a tensor there."""
    known, told = _Known.of(function), kwargs.get("device")
    tensors, listed = _among([*args, *kwargs.values()])
    placed = any(isinstance(each, Placed) for each in tensors)
    if not placed:
        genuine_meta = (
            told is not None
            and told.type == "meta"
            and (tensors or _device.CURRENT_DEVICE == NOWHERE)
        )
        if genuine_meta or told is None or told.type == "cpu":
            return function(*args, **kwargs)
    assert current is not None, "a tensor of a pretended device outlived it"
    if known.composite:
        # In inference mode these come whole; outside of it autograd has taken them apart.
        with Operations():
            found = function.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    if known.name == "aten::_to_copy":
        return _copied(function, args[0], kwargs)
    if known.name == "aten::copy_":
        return _copied_into(function, args, kwargs)
    at = agreed(known.name, args, tensors, listed)
    if told is not None and told.type == "cpu":
        at = HOST
    elif told is not None and told.type == "cuda":
        at = _numbered(told)
    if known.name in _INDEXING:
        current.sent += sum(each is not None and not isinstance(each, Placed) for each in args[1])
    inner = [held_by(each) for each in args]
    if known.name == "aten::histc":
        inner[0] = inner[0].double()  # which a GPU counts as they are
    found = function(*inner, **{key: held_by(each) for key, each in kwargs.items()})
    if at == HOST:
        return found
    if known.name in _RESHAPING:
        # C++ has a shape of its own of the tensor outside.
        with torch._C._DisableTorchDispatch():
            return function(*args, **kwargs)
    written = {}
    for number, name, by_name in known.written:
        outer = kwargs.get(name) if by_name or number >= len(args) else args[number]
        if isinstance(outer, Placed):
            if outer.place == NOWHERE:
                outer.block.settle(at)
            written[id(outer.held)] = outer
    if isinstance(found, torch.Tensor):
        return written.get(id(found)) if id(found) in written else Placed(found, at)
    if isinstance(found, (tuple, list)):
        return type(found)(
            [Placed(each, at) if isinstance(each, torch.Tensor) else each for each in found]
        )
    return found


def _among(values: Sequence[Any]) -> tuple[list[torch.Tensor], set[int]]:
    """The tensors of an operation, and which of them stand in lists."""
    tensors, listed = [], set()
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            inside = [each for each in value if isinstance(each, torch.Tensor)]
            tensors += inside
            listed |= {id(each) for each in inside}
    return tensors, listed


def agreed(name: str, args: Any, tensors: Sequence[torch.Tensor], listed: set[int]) -> torch.device:
    """Where an operation runs; refused if its operands are in different places.

    A number may come from the host beside tensors of a device, but not among those of a list, and so may indices.
    """
    places = set()
    for each in tensors:
        if isinstance(each, Placed):
            places.add(each.place)
        else:
            assert each.device != NOWHERE, f"{name} of a tensor without values"
            free = (
                id(each) in listed and each is not args[0] if name in _INDEXING else each.dim() == 0
            )
            if not free or (id(each) in listed and name not in _INDEXING):
                places.add(HOST)
    places.discard(NOWHERE)
    if len(places) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(map(str, places)))}! ({name}; a pretended device)"
        )
    return places.pop() if places else NOWHERE


def _copied(function: Any, tensor: torch.Tensor, kwargs: dict[str, Any]) -> torch.Tensor:
    """A copy, of another type or in another place."""
    assert current is not None
    told, start = kwargs.get("device"), place_of(tensor)
    end = start if told is None else _numbered(told)
    if end == NOWHERE and start != HOST:
        end = start
    if end == NOWHERE:
        return function(tensor, **kwargs)  # type: ignore[no-any-return]
    found: torch.Tensor = function(held_by(tensor), **{**kwargs, "device": HOST})
    _moved(start, end)
    return found if end == HOST else Placed(found, end)


def _copied_into(function: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    into, source = args[:2]
    if isinstance(into, Placed) and into.place == NOWHERE and isinstance(source, Placed):
        into.block.settle(source.place)
    function(held_by(into), held_by(source), *args[2:], **kwargs)
    _moved(place_of(source), place_of(into))
    return into  # type: ignore[no-any-return]


def _moved(start: torch.device, end: torch.device) -> None:
    """Count what the host sends."""
    assert current is not None
    current.sent += start == HOST and end not in (HOST, NOWHERE)


class Operations(TorchDispatchMode):
    """Operations without a placed tensor that are to make one, too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class _Moved(torch.autograd.Function):
    """A copy to another place, whose gradient goes back: C++ would not know where the tensor came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, end: torch.device, dtype: Any) -> torch.Tensor:
        ctx.start, ctx.dtype = place_of(tensor), tensor.dtype
        return tensor.to(end, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].to(ctx.start, ctx.dtype), None, None


def moved_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to`, for which C++ would ask whether a tensor is where it is to go already."""
    copy = kwargs.pop("copy", False)
    if args and isinstance(args[0], torch.Tensor) or "other" in kwargs:
        other = args[0] if args else kwargs.pop("other")
        device, dtype, quietly, form = other.device, other.dtype, False, None
    else:
        device, dtype, quietly, form = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
    end = place_of(self) if device is None else _numbered(device)
    if end == place_of(self) and dtype in (None, self.dtype) and not copy:
        return self
    if (
        end != place_of(self)
        and isinstance(self, Placed)
        and self.requires_grad
        and torch.is_grad_enabled()
    ):
        return _Moved.apply(self, end, dtype)  # type: ignore[no-any-return]
    options = {"dtype": dtype, "device": end, "non_blocking": quietly, "memory_format": form}
    return torch.ops.aten._to_copy.default(  # type: ignore[no-any-return]
        self, **{key: value for key, value in options.items() if value is not None}
    )


def on_host_first(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Functions that turn Python's numbers into a tensor on a device: they make it on the host, and send it."""

    def made(
        values: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        if device is None:
            device = values.device if isinstance(values, torch.Tensor) else _device.CURRENT_DEVICE
        if isinstance(values, Placed):
            found: torch.Tensor = values.detach().clone()
        elif torch.device(device or HOST).type != "cuda":
            return make(values, *args, device=device, **kwargs).requires_grad_(requires_grad)
        else:
            found = make(values, *args, **kwargs)
        return found.to(device=device, dtype=kwargs.get("dtype")).requires_grad_(requires_grad)

    return made
