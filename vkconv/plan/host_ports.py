"""Where the host meets the steps of a plan: the buffers that inputs come in by and outputs leave by."""

from collections.abc import Collection, Mapping

from vkconv.plan.commands import BufferKind, Region
from vkconv.plan.regions import words
from vkconv.plan.steps import Steps

_Buffers = Mapping[str, tuple[int, BufferKind]]


class HostPorts:
    """By name, where the host writes inputs (``arrivals``) and reads outputs (``departures``), narrowed, to be widened
    or as they are; ``inputs`` and ``outputs`` are where arrays of the device stand in for them. ``inputs_there`` and
    ``outputs_there`` are the blocks, among those given, that lie in these ports, ``leaves`` the block of each output;
    ``buffers`` is what to allocate."""

    def __init__(self, steps: Steps, blocks: Collection[str]) -> None:
        self._steps = steps
        names = steps.bound.inputs
        self.inputs = {name: self._port("input", name, name) for name in names}
        self.arrivals = {
            name: self._port("narrowed", name, steps.arriving[name]) if name in steps.narrowing else self.inputs[name]
            for name in names
        }
        self.leaves = {name: f"value:{steps.root(steps.leaving[name])}" for name in steps.computed}
        self.inputs_there = self._inputs_there(blocks)
        self.outputs_there = self._outputs_there(blocks)
        self.departures = {
            name: self.outputs_there.get(block, self._departure(name)) for name, block in self.leaves.items()
        }
        self.outputs = {
            name: self._port("output", name, name) if name in steps.widening else port
            for name, port in self.departures.items()
        }
        uploads, downloads, caches = self._uploads(), self._downloads(), self._caches()
        self.buffers: _Buffers = {**uploads, **downloads, **caches}
        self.upload_bytes, self.download_bytes = _host_bytes(uploads), _host_bytes(downloads)
        self.caches_bytes = sum(nbytes for nbytes, _ in caches.values())

    def _port(self, side: str, name: str, value: str) -> Region:
        return Region(f"{side}:{name}", 0, words(self._steps.bound.specs[value].nbytes))

    def _departure(self, name: str) -> Region:
        side = "widened" if name in self._steps.widening else "output"
        return self._port(side, name, self._steps.leaving[name])

    def _inputs_there(self, blocks: Collection[str]) -> dict[str, Region]:
        steps, found = self._steps, dict[str, Region]()
        # Memory that the user gave is not to be written over.
        copied = {steps.root(value) for value in steps.updated} - steps.caches
        for name, value in steps.arriving.items():
            own = name in steps.caches or (steps.transfers.ports and name not in copied)
            if own and f"value:{value}" in blocks and steps.bound.specs[name].size:
                found[f"value:{value}"] = self.arrivals[name]
        return found

    def _outputs_there(self, blocks: Collection[str]) -> dict[str, Region]:
        """An output that is an input, or a part of a larger value, is copied: the one lies in memory that may be slow
        to read, the other would take its whole home out of the memory that is shared by lifetime."""
        steps, found = self._steps, dict[str, Region]()
        # What kernels read stays in memory of the device.
        reads = {steps.root(value) for node, _ in steps.in_order for value in node.reads.values()}
        near = {steps.homes.home(value)[0] for value in reads} if steps.transfers.far_outputs else set[str]()
        kept = {f"value:{value}" for value in (*steps.bound.inputs, *near)}
        for name, block in self.leaves.items() if steps.transfers.output_ports else ():
            if block in blocks and block not in kept and steps.bound.specs[name].size:
                found.setdefault(block, self._departure(name))
        return found

    def _uploads(self) -> _Buffers:
        steps = self._steps
        port: BufferKind = "streamed" if steps.transfers.streamed else "input"
        return {
            region.buffer: (region.nbytes, port if f"value:{steps.arriving[name]}" in self.inputs_there else "upload")
            for name, region in self.arrivals.items()
            if name not in steps.caches
        }

    def _downloads(self) -> _Buffers:
        port: BufferKind = "streamed" if self._steps.transfers.streamed_outputs else "output"
        return {
            region.buffer: (region.nbytes, port if self.leaves[name] in self.outputs_there else "download")
            for name, region in self.departures.items()
        }

    def _caches(self) -> _Buffers:
        return {
            region.buffer: (region.nbytes, "device")
            for name, region in self.inputs.items()
            if name in self._steps.caches
        }


def _host_bytes(ports: _Buffers) -> int:
    """What ports take; streamed ones lie in staging and on the device."""
    return sum(nbytes * (2 if kind == "streamed" else 1) for nbytes, kind in ports.values())
