"""Ports: the buffers that one run of a plan has of its own, where the host writes its inputs and reads its outputs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vkconv.backend.runtime import LiveDevice
from vkconv.core import Array
from vkconv.plan.model import Plan

if TYPE_CHECKING:
    from vkconv.backend import _bridge


class Ports:
    """Buffers for the inputs and outputs of one run, allocated once, and arrays on those that the host sees.

    The caller keeps the device from using them while the host does: it waits before `write` and before `read`.
    """

    def __init__(self, plan: Plan, live: LiveDevice) -> None:
        self._plan = plan
        self.buffers: dict[str, _bridge.Buffer] = {}
        for region in [region for _, region in (*plan.inputs.values(), *plan.outputs.values())]:
            if region.buffer not in self.buffers:
                self.buffers[region.buffer] = live.handle.buffer(*plan.buffers[region.buffer])
        self._inputs = {
            name: (self.buffers[region.buffer], mapped(self.buffers[region.buffer], spec.dims, spec.dtype.numpy))
            for name, (spec, region) in plan.inputs.items()
            if spec.size
        }

    def write(self, inputs: Mapping[str, Array]) -> None:
        """Put the inputs where the device reads them."""
        for name, (buffer, target) in self._inputs.items():
            target[...] = inputs[name]
            buffer.flush()

    def read(self) -> dict[str, Array]:
        """The outputs as new arrays."""
        outputs: dict[str, Array] = {}
        for buffer in {region.buffer: None for _, region in self._plan.outputs.values()}:
            self.buffers[buffer].invalidate()
        for name, (spec, region) in self._plan.outputs.items():
            outputs[name] = mapped(self.buffers[region.buffer], spec.dims, spec.dtype.numpy).copy()
        return outputs | {name: array.copy() for name, array in self._plan.known.items()}

    def close(self) -> None:
        """Let the buffers go."""
        self._inputs.clear()
        self.buffers.clear()


def mapped(buffer: "_bridge.Buffer", dims: tuple[int, ...], dtype: np.dtype[np.generic], offset: int = 0) -> Array:
    """An array on the bytes of a buffer that the host sees, from ``offset`` on; it keeps the memory alive."""
    array: Array = np.ndarray(dims, dtype, buffer.view, offset)
    return array
