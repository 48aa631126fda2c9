"""Arrays that stay on a device between runs."""

from collections.abc import Iterator
from types import EllipsisType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from vkconv.backend.read_back import read_back
from vkconv.backend.runtime import LiveDevice, open_device
from vkconv.backend.storage import Storage
from vkconv.core import Array, DType, GraphError, InputError, Shape, UsageError, given_array, shape_str
from vkconv.device import Device
from vkconv.plan.commands import BufferKind
from vkconv.plan.transfers import transfers

_WORD_BYTES = 4
# An index as numpy has it, of which those that take bytes in a row give a view.
Index = int | slice | EllipsisType
_CPU = (1, 0)  # kDLCPU of DLPack, device 0


class DeviceArray:
    """An array in memory of a device: `array` makes one, runs with ``out="device"`` give them.

    It goes into every run on its device that takes arrays, without a copy by way of the host. Nobody writes to it. Its
    memory is freed with it and all views of it. Where the host sees that memory, `numpy` and DLPack give it as it is.
    """

    def __init__(self, storage: Storage, shape: Shape, dtype: DType, offset: int = 0, keep: object = None) -> None:
        self.storage, self.shape, self.offset = storage, tuple(shape), offset
        self._dtype = dtype
        self._keep = keep  # what gives the storage back once no array lies in it

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its elements as numpy calls them."""
        return self._dtype.numpy

    @property
    def device(self) -> Device:
        """Facts of the device that it is on."""
        return self.storage.live.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self._dtype.nbytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of rank 0 has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator["DeviceArray"]:
        """Views along the first dimension. Without this Python would ask for elements until an IndexError, which rank 0
        has at once: it would seem empty."""
        if not self.shape:
            raise TypeError("an array of rank 0 cannot be iterated over; bool() and .numpy() give its element")
        return (self[i] for i in range(self.shape[0]))

    def __repr__(self) -> str:
        return f"DeviceArray({shape_str(self.shape)} {self._dtype} on {self.device.name})"

    def numpy(self) -> Array:
        """The array on the host, read-only: its own memory where the host reads that fast, else a copy.

        Raises DeviceError where the copy fails.
        """
        if not self.storage.is_read_fast or not self.size:
            return self._copied()
        return self._on_memory(writable=False)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False and not self.storage.is_read_fast:
            raise ValueError(f"the host cannot read {self!r} where it lies; leave out copy=False")
        array = self.numpy()
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise ValueError(f"{self!r} as {np.dtype(dtype)} is a copy; leave out copy=False")
        converted = array if dtype is None else array.astype(dtype, copy=False)
        return converted.copy() if copy and converted is array else converted

    def __bool__(self) -> bool:
        if self.size != 1:
            raise InputError(f"{self!r} has {self.size} elements, and no one truth; use .numpy() with any() or all()")
        return bool(self.numpy().reshape(()))

    def __eq__(self, other: object) -> Array:  # type: ignore[override]
        """Which elements are equal, on the host, as numpy has it; ``is`` tells whether two are one array."""
        same: Array = self.numpy() == np.asarray(other)
        return same

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        differ: Array = self.numpy() != np.asarray(other)
        return differ

    __hash__ = object.__hash__  # that of this object: it is a key of what users keep

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """UsageError: memory of a device is in no pickle, and a copy of it is made by hand."""
        raise UsageError(f"{self!r} cannot be copied or pickled; take .numpy(), and vkconv.array of that")

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host, where the host reads the memory as it is; InputError elsewhere, where `numpy` makes a copy."""
        self._check_mapped()
        return _CPU

    def __dlpack__(self, **how: Any) -> Any:
        """The memory as it is, for frameworks on the CPU. DLPack has no word for memory that must not be written, which
        this is. InputError where the host does not read it fast."""
        self._check_mapped()
        if self._dtype is DType.BF16:
            raise InputError(f"{self!r}: numpy gives no bf16 to DLPack; take .numpy().view('uint16')")
        host: Any = self._on_memory(writable=True)
        return host.__dlpack__(**how)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> "DeviceArray":
        """A view of elements that lie in a row, by integers and slices as in numpy; nothing is copied.

        IndexError where numpy raises it; InputError for an index that takes others: take it of ``.numpy()``.
        """
        keys = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(key, int | np.integer | slice | EllipsisType) for key in keys) or any(
            isinstance(key, bool) for key in keys
        ):
            raise InputError(f"{self!r} takes integers, slices and ... as an index, not {index!r}; index its .numpy()")
        if Ellipsis not in keys:  # so that a place is an array of rank 0, which is not read
            keys = (*keys, Ellipsis)
        # One element stands for all: nothing of this is ever read.
        steps = [self._dtype.nbytes * int(np.prod(self.shape[axis + 1 :])) for axis in range(self.ndim)]
        whole = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, steps, writeable=False)
        part = whole[keys]
        if not part.flags.c_contiguous:
            raise InputError(f"{self!r}: {index!r} takes elements that do not lie in a row; index its .numpy()")
        begin = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0] if part.size else 0
        return DeviceArray(self.storage, part.shape, self._dtype, self.offset + begin, self._keep)

    def reshape(self, *shape: int | tuple[int, ...]) -> "DeviceArray":
        """A view of another shape, with -1 for what follows from the others; InputError where the sizes differ."""
        given: Any = shape[0] if len(shape) == 1 else shape
        one = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), (self.size,), (1,), writeable=False)
        try:
            dims = one.reshape(given).shape
        except (TypeError, ValueError) as error:
            raise InputError(f"{self!r} has {self.size} elements and takes no shape {given}: {error}") from None
        return DeviceArray(self.storage, dims, self._dtype, self.offset, self._keep)

    def _on_memory(self, writable: bool) -> Array:
        array: Array = np.asarray(_Mapped(self, writable)).view(self.dtype).reshape(self.shape)
        return array

    def _check_mapped(self) -> None:
        if not self.storage.is_read_fast:
            raise InputError(f"the host cannot read {self!r} where it lies; .numpy() makes a copy")

    def _copied(self) -> Array:
        live = self.storage.live
        host: Array = np.empty(self.shape, self.dtype)
        if self.size:
            with live.using(f"reading {self!r}"):
                read_back(live).read(self.storage, self.offset, host)
        host.flags.writeable = False
        return host


class _Mapped:
    """The memory of a `DeviceArray` as numpy takes bytes; it keeps the array, and so the memory."""

    def __init__(self, array: DeviceArray, writable: bool) -> None:
        self._array = array
        start = np.frombuffer(array.storage.buffer.view, np.uint8).__array_interface__["data"][0] + array.offset
        data = (start, not writable)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (array.nbytes,), "data": data}


def array(x: npt.ArrayLike, device: str | int = "auto") -> DeviceArray:
    """Put an array on a device, to be given to any number of runs there; ``device`` is as `vkconv.load` has it.

    Raises InputError for what is no array of a type that vkconv has, whatever error its own conversion to one raises,
    UsageError and DeviceError for the device.
    """
    given = given_array(x, "array")
    try:
        DType.of(given.dtype)
    except GraphError as error:
        raise InputError(f"array: {error}") from None
    return placed(given, open_device(device))


def placed(given: Array, live: LiveDevice) -> DeviceArray:
    """An array on an open device."""
    dtype = DType.of(given.dtype)
    way = transfers(live.device, None, given.nbytes, given.nbytes)
    kind: BufferKind = "output" if way.outputs else "input" if way.inputs else "device"
    threads = live.copying.threads_for(given.nbytes)
    nbytes = max(_WORD_BYTES, -(-given.nbytes // _WORD_BYTES) * _WORD_BYTES)
    with live.using(f"placing {shape_str(given.shape)} {dtype} on {live.device.name}"):
        buffer = live.handle.buffer(nbytes, kind)
        staging = live.handle.buffer(nbytes, "upload") if kind == "device" else buffer
        staging.write(np.asarray(given, dtype.numpy), threads)
        if staging is not buffer:
            recording = live.handle.recording()
            recording.copy(staging, 0, buffer, 0, nbytes)
            recording.end()
            recording.run()
    return DeviceArray(Storage(buffer, live), given.shape, dtype)


def check_device(given: DeviceArray, live: LiveDevice, what: str) -> None:
    """InputError where an array is on another device than the one that is to use it."""
    if given.storage.live is not live:
        same = given.device.name == live.device.name
        raise InputError(
            f"{what} is on {given.device.name}{', opened before it was lost' if same else ''}, and the run on "
            f"{live.device.name}; move it with vkconv.array(x.numpy(), device)"
        )


def check_out(out: str) -> None:
    """UsageError for a place of results that there is not, such as numpy's ``out``, an array to write to."""
    if not isinstance(out, str) or out not in ("host", "device"):
        raise UsageError(f"out is {out!r}; it is 'host', for numpy arrays, or 'device', for arrays that stay there")
