"""Where the host meets a plan: inputs and outputs in memory that kernels use too, or in staging buffers."""

import dataclasses
from typing import Literal

import msgspec

from vkconv.core import UsageError, bytes_str
from vkconv.device import Device
from vkconv.device.facts import HOST_CACHED, HOST_VISIBLE, LOCAL
from vkconv.policy import Policy


class _InPlace(msgspec.Struct, frozen=True):
    """A row of the policy: which way goes without staging, the share of a heap that it may take, and from how many
    bytes on inputs that are staged are streamed. Up to so many bytes inputs go without staging anyway, and outputs,
    which may then lie in memory of the host."""

    inputs: bool
    outputs: bool
    heap_share: float
    streamed_from_bytes: int
    inputs_to_bytes: int = 0
    outputs_to_bytes: int = 0


class _Streamed(msgspec.Struct, frozen=True):
    """A row of the policy: from how many bytes on outputs that are staged are streamed; without it never."""

    from_bytes: int | None = None


class Importing(msgspec.Struct, frozen=True):
    """From how many bytes on the pages of a caller's array are cheaper to import than the array is to copy, in a plan
    without launches, and how many bytes each launch adds, whose commands are recorded anew."""

    from_bytes: int
    bytes_per_launch: int

    def least_bytes(self, launches: int) -> int:
        """From how many bytes on in a plan of so many launches."""
        return self.from_bytes + launches * self.bytes_per_launch


class _Imported(msgspec.Struct, frozen=True):
    """A row of the policy: when arrays are imported; without it never."""

    when: Importing | None = None


class Copying(msgspec.Struct, frozen=True):
    """How the host copies: the most threads, the least bytes that each is worth, and what streamed inputs go to the
    device in."""

    threads: int
    bytes_per_thread: int
    chunk_bytes: int

    def threads_for(self, nbytes: int) -> int:
        """The threads that share a copy of so many bytes."""
        return max(1, min(self.threads, nbytes // self.bytes_per_thread))


_IN_PLACE = Policy("transfers.in_place", _InPlace)
_NARROWED = Policy("transfers.narrowed", bool)
_WIDENED = Policy("transfers.widened", bool)
_IMPORTED = Policy("transfers.imported", _Imported)
_STREAMED_OUTPUTS = Policy("transfers.streamed_outputs", _Streamed)
COPYING = Policy("transfers.copying", Copying)
POLLING_US = Policy("transfers.polling_us", float)
# What `Options.staging` takes.
Staging = bool | Literal["streamed", "imported"] | None
_IMPORTS = "VK_EXT_external_memory_host"
_TIMELINE = ("VkPhysicalDeviceTimelineSemaphoreFeatures", "timelineSemaphore")


@dataclasses.dataclass(frozen=True)
class Transfers:
    """How a plan's inputs and outputs move. ``inputs``: kernels read them where the host writes them; ``streamed``:
    they read them in memory of the device that the queue for copies fills from staging, chunk by chunk, while the host
    writes the next and the device works on what came before; ``outputs``: the host reads them where kernels write them;
    ``far_outputs``: that is memory of the host, where no value lies that kernels read; ``streamed_outputs``: kernels
    write them in memory of their own, which is copied to staging behind the run, chunk by chunk, while the host reads
    what came before.
    Otherwise a copy between the kernels moves them from or to a staging buffer. ``narrowed``: the host may cast f32 to
    16 bits on its way in; `Plan.narrowed` are the inputs of which it does. ``widened``: it may cast 16 bits to f32 on
    its way out; `Plan.widened` are the outputs. ``imported``: when kernels read an input in
    the pages of the caller's own array; `Plan.imported` are the inputs. The texts say why.
    """

    inputs: bool
    inputs_why: str
    outputs: bool
    outputs_why: str
    streamed: bool = False
    narrowed: bool = False
    imported: Importing | None = None
    streamed_outputs: bool = False
    far_outputs: bool = False
    widened: bool = False

    @property
    def ports(self) -> bool:
        """Whether kernels read inputs in memory of their own, which is no other value's."""
        return self.inputs or self.streamed

    @property
    def output_ports(self) -> bool:
        """Whether kernels write outputs to memory of their own."""
        return self.outputs or self.streamed_outputs

    def __str__(self) -> str:
        inputs = "inputs are written where kernels read them" if self.inputs else "inputs go through staging"
        inputs = "inputs are streamed through staging" if self.streamed else inputs
        outputs = "outputs are read where kernels write them" if self.outputs else "outputs go through staging"
        outputs = "outputs are streamed through staging" if self.streamed_outputs else outputs
        return f"{inputs} ({self.inputs_why}); {outputs} ({self.outputs_why})"


def transfers(
    device: Device, staging: Staging, inputs_bytes: int, outputs_bytes: int, casts_bytes: int = 0
) -> Transfers:
    """How inputs and outputs of so many bytes move on a device; so many bytes of outputs are f32 that the host may
    widen, and leave as half of that then.

    Vulkan lets kernels and the host share a memory type that is DEVICE_LOCAL and HOST_VISIBLE. For outputs it must be
    HOST_CACHED too: from write-combined memory the host reads a word at a time. Where no such type is DEVICE_LOCAL, few
    bytes of outputs may go to one of the host. ``staging`` on stages all, "streamed" streams all; off leaves staging
    out wherever a type allows it, also one of the host for outputs, and with None the policy ``transfers.in_place``
    says where. Streaming takes timeline semaphores. With "streamed" inputs are narrowed and outputs widened, with None
    or off where the policies ``transfers.narrowed`` and ``transfers.widened`` say so. With "imported" staging is left
    out as with off, but for memory of the host, and inputs of any size are imported where the device has the extension
    for that and they are not staged; with None the policy ``transfers.imported`` says from which size on. UsageError
    for another ``staging``.
    """
    named = isinstance(staging, str) and staging in ("streamed", "imported")
    if not (named or staging is None or isinstance(staging, bool)):
        raise UsageError(f"staging is {staging!r}; it is True, False, 'streamed', 'imported' or None")
    streams = device.feature(*_TIMELINE)
    if staging is True or staging == "streamed":
        streamed = staging == "streamed" and streams
        why = "asked for" if streamed or staging is True else "the device has no timeline semaphores to stream with"
        by_host = staging == "streamed"
        return Transfers(False, why, False, why, streamed, narrowed=by_host, streamed_outputs=streamed, widened=by_host)
    policy = _IN_PLACE.of(device)
    wanted = policy if staging is None else _InPlace(True, True, 1.0, 0)
    by = "asked for" if staging is not None else f"policy transfers.in_place, {_IN_PLACE.said(device)}"

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

    narrowed, widened = (staging in (None, False) and casts.of(device) for casts in (_NARROWED, _WIDENED))
    outputs_bytes -= casts_bytes // 2 if widened else 0
    few_in, few_out = inputs_bytes <= wanted.inputs_to_bytes, outputs_bytes <= wanted.outputs_to_bytes
    inputs, inputs_why = one_way(wanted.inputs or few_in, inputs_bytes, LOCAL, HOST_VISIBLE)
    outputs, outputs_why = one_way(wanted.outputs, outputs_bytes, LOCAL, HOST_VISIBLE, HOST_CACHED)
    far = not outputs and (few_out or staging is False)
    if far:
        outputs, outputs_why = one_way(True, outputs_bytes, HOST_VISIBLE, HOST_CACHED)
    streamed = not inputs and streams and staging is None and inputs_bytes >= policy.streamed_from_bytes
    when = Importing(0, 0) if staging == "imported" else _IMPORTED.of(device).when if staging is None else None
    imported = when if inputs and device.has(_IMPORTS) else None
    from_bytes = _STREAMED_OUTPUTS.of(device).from_bytes if not outputs and streams and staging is None else None
    back = from_bytes is not None and outputs_bytes >= from_bytes
    far_outputs = far and outputs
    return Transfers(inputs, inputs_why, outputs, outputs_why, streamed, narrowed, imported, back, far_outputs, widened)


def as_if_large(device: Device) -> Staging:
    """The ``staging`` by which a small call's kernels have the memory that those of large ones have, so that times of
    both can be compared."""
    policy = _IN_PLACE.of(device)
    return None if policy.inputs and policy.outputs else True
