"""Where the host meets a plan: inputs and outputs in memory that kernels use too, or in staging buffers."""

import dataclasses

import msgspec

from vkconv.core import bytes_str
from vkconv.device import Device
from vkconv.device.facts import HOST_CACHED, HOST_VISIBLE, LOCAL
from vkconv.policy import Policy


class _InPlace(msgspec.Struct, frozen=True):
    """A row of the policy: which way goes without staging, and the share of a heap that it may take."""

    inputs: bool
    outputs: bool
    heap_share: float


_IN_PLACE = Policy("transfers.in_place", _InPlace)


@dataclasses.dataclass(frozen=True)
class Transfers:
    """How a plan's inputs and outputs move. ``inputs``: kernels read them where the host writes them; ``outputs``: the
    host reads them where kernels write them. Otherwise a copy on the device moves them from or to a staging buffer.
    The texts say why."""

    inputs: bool
    inputs_why: str
    outputs: bool
    outputs_why: str

    def __str__(self) -> str:
        inputs = "inputs are written where kernels read them" if self.inputs else "inputs go through staging"
        outputs = "outputs are read where kernels write them" if self.outputs else "outputs go through staging"
        return f"{inputs} ({self.inputs_why}); {outputs} ({self.outputs_why})"


def transfers(device: Device, staging: bool | None, inputs_bytes: int, outputs_bytes: int) -> Transfers:
    """How inputs and outputs of so many bytes move on a device.

    Vulkan lets kernels and the host share a memory type that is DEVICE_LOCAL and HOST_VISIBLE. For outputs it must be
    HOST_CACHED too: from write-combined memory the host reads a word at a time. ``staging`` on stages all; off leaves
    staging out wherever a type allows it, and with None the policy ``transfers.in_place`` says where.
    """
    if staging:
        return Transfers(False, "asked for", False, "asked for")
    policy = _IN_PLACE.of(device)
    wanted = _InPlace(True, True, 1.0) if staging is False else policy
    by = "asked for" if staging is False else f"policy transfers.in_place, {_IN_PLACE.said(device)}"

    def one_way(want: bool, nbytes: int, *flags: str) -> tuple[bool, str]:
        if not want:
            return False, by
        heaps = [t.heap_bytes for t in device.memory_types if t.has(*flags)]
        if not heaps:
            names = ", ".join(flag.removeprefix("VK_MEMORY_PROPERTY_").removesuffix("_BIT") for flag in flags)
            return False, f"no memory type is {names}"
        most = int(wanted.heap_share * max(heaps))
        if nbytes > most:
            return False, f"{bytes_str(nbytes)} are over the {bytes_str(most)} of that heap"
        return True, by

    inputs, inputs_why = one_way(wanted.inputs, inputs_bytes, LOCAL, HOST_VISIBLE)
    outputs, outputs_why = one_way(wanted.outputs, outputs_bytes, LOCAL, HOST_VISIBLE, HOST_CACHED)
    return Transfers(inputs, inputs_why, outputs, outputs_why)
