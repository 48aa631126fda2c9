"""What sessions have in common: how they are run, called and closed."""

import abc
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self, overload

from vkconv.backend.arrays import DeviceArray, check_out
from vkconv.backend.given import Given, by_position
from vkconv.core import Array, UsageError
from vkconv.graph import TensorSpec


class Closing(abc.ABC):
    """What holds memory of a device: a context manager, or `close` when done."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device memory; the session refuses further runs. Closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Running(Closing):
    """A model on a device, which runs with arrays in and out. ``inputs`` is what a run takes, by name."""

    name: str
    inputs: Mapping[str, TensorSpec]
    _closed = False

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

    @abc.abstractmethod
    def _run(
        self, inputs: Mapping[str, Given], timeout_s: float | None, there: bool
    ) -> dict[str, Array] | dict[str, DeviceArray]:
        """`run`, whose outputs stay on the device where ``there``."""

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"session {self.name!r} is closed; load the model again")
