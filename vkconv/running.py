"""What sessions have in common: how they are run, called and closed."""

import abc
import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, overload

from vkconv.backend.arrays import DeviceArray, check_out
from vkconv.backend.flights import Deadline, Flights
from vkconv.backend.given import Given, by_position
from vkconv.backend.runtime import check_fork
from vkconv.core import Array, UsageError
from vkconv.graph import TensorSpec


class Closing(abc.ABC):
    """What holds memory of a device: a context manager, or `close` when done."""

    name: str
    _closed = False

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device memory; the session refuses further runs. Closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """UsageError: memory of a device is in no pickle, and a copy would close what this one runs with."""
        raise UsageError(f"session {self.name!r} cannot be copied or pickled; load the model where it is to run")

    def _check_open(self) -> None:
        check_fork()
        if self._closed:
            raise UsageError(f"session {self.name!r} is closed; load the model again")


class Running(Closing):
    """A model on a device, which runs with arrays in and out. ``inputs`` is what a run takes, by name, ``outputs`` the
    names of what it gives; both are read-only, as is the model's ``metadata``."""

    inputs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    metadata: Mapping[str, str]
    _flights: Flights

    @overload
    def run(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["host"] = "host"
    ) -> dict[str, Array]: ...
    @overload
    def run(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["device"]
    ) -> dict[str, DeviceArray]: ...

    def run(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["host", "device"] = "host"
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        """One inference.

        ``inputs`` maps every input name to an array of the right shape and dtype (any memory order or byte
        order), or to one that is on the device (`vkconv.array`); the result maps every output name to a new array, with
        ``out="device"`` to one that stays there. Raises InputError for inputs that do not fit, naming name, shape and
        dtype, and for arrays of another device, UsageError for another ``out``, and DeviceError when the device fails
        or ``timeout_s`` passes (waiting for a run before that timed out counts too).
        """
        check_out(out)
        return self._run(inputs, timeout_s, out == "device")

    def __call__(self, *arrays: Given, **named: Given) -> Array | tuple[Array, ...]:
        """`run` with inputs in the order of ``inputs``, or by name: the output, or a tuple of them where there are
        several. Raises as `run` does, and UsageError for too many inputs."""
        outputs = tuple(self.run(by_position(self.name, list(self.inputs), arrays, named)).values())
        return outputs[0] if len(outputs) == 1 else outputs

    @overload
    def submit(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["host"] = "host"
    ) -> Future[dict[str, Array]]: ...
    @overload
    def submit(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["device"]
    ) -> Future[dict[str, DeviceArray]]: ...

    def submit(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["host", "device"] = "host"
    ) -> Future[dict[str, Array]] | Future[dict[str, DeviceArray]]:
        """Start one inference and return a future of what `run` would return.

        At most ``in_flight`` runs are on their way at a time, each with inputs and outputs of its own, so that the
        inputs of one are written while the device works on another; a further one waits here, and up to a second while
        callbacks of as many that have ended are still to be called. They run and end in the order in which they were
        submitted, from whatever thread. Where the host drives a run (models in stages, caches), the next one begins
        when it is done. ``inputs`` may change once this returns.

        Raises as `run` does for inputs, LimitError where ``memory_bytes`` leaves too little for them, and DeviceError
        where ``timeout_s`` passes before there is room. What fails on the device is raised by the future, which cannot
        be cancelled, and so is DeviceError where the run has not ended ``timeout_s`` after this call, whatever it
        waited for. Callbacks of futures are called by a thread of the session's own, in order, and may do all that
        other code may.
        """
        check_out(out)
        deadline = Deadline.after(timeout_s)
        self._check_open()
        self._flights.room(deadline)
        try:
            return self._start(inputs, deadline, out == "device")
        except BaseException:
            self._flights.leave()
            raise

    @overload
    async def arun(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["host"] = "host"
    ) -> dict[str, Array]: ...
    @overload
    async def arun(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["device"]
    ) -> dict[str, DeviceArray]: ...

    async def arun(
        self, inputs: Mapping[str, Given], *, timeout_s: float | None = None, out: Literal["host", "device"] = "host"
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        """One inference for asyncio: `submit`, awaited. A thread of the session's own submits, so that the event loop
        is free meanwhile; runs are submitted, and end, in the order in which they began to be awaited. One that is
        cancelled before it was submitted does not run. ``timeout_s`` counts from when it is submitted; leave ``inputs``
        as they are until it is done."""
        self._check_open()
        run: Future[Any] = self._flights.later(lambda: self.submit(inputs, timeout_s=timeout_s, out=out))
        outputs: dict[str, Array] | dict[str, DeviceArray] = await asyncio.wrap_future(run)
        return outputs

    @abc.abstractmethod
    def _start(self, inputs: Mapping[str, Given], deadline: Deadline, there: bool) -> Future[Any]:
        """`submit` once there is room."""

    @abc.abstractmethod
    def _run(
        self, inputs: Mapping[str, Given], timeout_s: float | None, there: bool
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        """`run`, whose outputs stay on the device where ``there``."""
