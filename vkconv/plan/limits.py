"""Device limits, checked for every dispatch when it is planned; each error names both numbers."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator

from vkconv.core import LimitError, exact_bytes
from vkconv.device import Device
from vkconv.graph import TensorSpec
from vkconv.kernel import Kind
from vkconv.ops.conv.by_images import BY_IMAGES
from vkconv.plan.bound import BoundGraph
from vkconv.plan.commands import Launch
from vkconv.plan.model import Memory, PlannedNode
from vkconv.program import Dispatch, Program
from vkconv.texture import VULKAN_FORMATS, extents, lacks_format, most, said

_AXES = "xyz"
_BUFFERS = "maxPerStageDescriptorStorageBuffers"
_RANGE, _STEP = "maxStorageBufferRange", "minStorageBufferOffsetAlignment"
_OF_TEXTURES: dict[Kind, tuple[str, ...]] = {
    "sampled": ("maxPerStageDescriptorSampledImages", "maxPerStageDescriptorSamplers"),
    "stored": ("maxPerStageDescriptorStorageImages",),
}
_ALLOCATION = ("VkPhysicalDeviceMaintenance3Properties", "maxMemoryAllocationSize")


def _assumed(device: Device, limit: str) -> str:
    """Said behind a limit that the device's file only assumes."""
    return " (assumed by its device file: a real one may allow more)" if device.assumes(limit) else ""


def _binding(device: Device, node: PlannedNode | None, nbytes: int) -> str:
    """What is assumed of how much a binding takes, and, where that is what keeps images of a tensor of so many bytes
    from being bound one after the other, of where one may begin; or how to have them taken so."""
    most = _assumed(device, _RANGE)
    verdicts = node.choice.verdicts if node is not None and node.choice is not None else ()
    by_images = next((verdict for verdict in verdicts if verdict.route.name == BY_IMAGES), None)
    if node is None or by_images is None:
        return most
    if by_images.allowed:
        inside = f"--route {node.call.op}={BY_IMAGES} --route {node.call.op}/some={node.route}"
        return f"{most}; some images after the others may fit, {inside}"
    images = next(iter(node.call.specs.values())).dims[0]
    if images <= 1 or nbytes // images > device.limit(_RANGE) or not device.assumes(_STEP):
        return most
    begin = f"bindings begin at multiples of {_STEP} = {device.limit(_STEP)} bytes"
    return f"{most} (assumed by its device file: {begin}; a real one may bind images that begin in between)"


def _allocation(device: Device) -> str:
    said = device.fact(*_ALLOCATION) is not None
    return "" if said else " (what Vulkan 1.1 promises, since its device file does not say: a real one may allow more)"


def check_dispatch(where: str, dispatch: Dispatch, device: Device) -> None:
    """Raise LimitError when a dispatch exceeds a limit of the device; ``where`` names the node and its call."""
    try:
        _ = dispatch.push_words, dispatch.spec_words
    except ValueError as error:
        raise LimitError(f"{where}: {dispatch.shader.key} needs {error}; use smaller shapes and attributes") from None
    for limit, value, allowed in _dispatch_limits(dispatch, device):
        if value > allowed:
            todo = "whatever its shapes: leave it out, or fold it" if limit == _BUFFERS else "use smaller shapes"
            assumed = _assumed(device, limit.partition(".")[0])
            raise LimitError(
                f"{where}: {dispatch.shader.key} needs {limit} = {value}, {device.name} allows {allowed}{assumed}; "
                f"{todo}"
            )


def check_program(where: str, node: PlannedNode, program: Program, device: Device) -> None:
    """Raise LimitError when a dispatch exceeds a limit of the device; it names the routes that would not."""
    try:
        _check_whole(where, program, device)
    except LimitError as error:
        fitting = _fitting_routes(where, node, device)
        if not fitting:
            raise
        raise LimitError(f"{error}, or force a route that fits with --route {node.call.op}={fitting[0]}") from None


def _check_whole(where: str, program: Program, device: Device) -> None:
    for dispatch in (*program.prepack, *program.steps):
        check_dispatch(where, dispatch, device)
    for name, texture in program.textures.items():
        for limit, value, allowed in extents(texture, device):
            if value > allowed:
                raise LimitError(
                    f"{where}: its texture {name!r} is {texture}, which needs {limit} = {value}, {device.name} allows "
                    f"{allowed}{said(limit, device)}; use smaller shapes"
                )
        texels = texture.format(program.packed.get(name) or program.scratch[name])
        if lacks_format(texels, device):
            raise LimitError(
                f"{where}: its texture {name!r} has texels of {VULKAN_FORMATS[texels]}, which {device.name} does not "
                "both sample and store"
            )


def _fitting_routes(where: str, node: PlannedNode, device: Device) -> list[str]:
    """Routes that may take the node and whose dispatches, with default parameters, are within the limits."""
    fitting = []
    for verdict in node.choice.verdicts if node.choice else ():
        if verdict.allowed:
            with contextlib.suppress(LimitError):
                _check_whole(where, verdict.route.build(node.call, device), device)
                fitting.append(verdict.route.name)
    return fitting


def check_launch(where: str, launch: Launch, device: Device, node: PlannedNode | None = None) -> None:
    """Raise LimitError when a bound region is larger than a storage buffer binding may be, or a workgroup larger than
    one whose pipeline asks for a subgroup size. ``node`` is what it is launched for."""
    sized, local = device.most_sized_invocations, math.prod(launch.spec_words[:3])
    if launch.subgroup_size and sized is not None and local > sized:
        raise LimitError(
            f"{where}: {launch.shader.key} has workgroups of {local} and asks for subgroups of {launch.subgroup_size}; "
            f"{device.name} allows {sized} then; set a smaller workgroup"
        )
    longest = device.limit(_RANGE)
    for (region, _), binding in zip(launch.binds, launch.shader.interface.bindings, strict=True):
        if region.nbytes > longest and binding.kind == "buffer":
            raise LimitError(
                f"{where}: {launch.shader.key} binds {region.nbytes} bytes, {_RANGE} of "
                f"{device.name} is {longest}{_binding(device, node, region.nbytes)}; use smaller shapes"
            )


def max_allocation_bytes(device: Device) -> int:
    """The largest single allocation; where a device file does not say, what Vulkan 1.1 guarantees."""
    return int(device.fact(*_ALLOCATION) or 1 << 30)


def _beyond_allocation(nbytes: int, device: Device) -> str:
    most = max_allocation_bytes(device)
    return (
        f"{exact_bytes(nbytes)}, the largest allocation of {device.name} is {exact_bytes(most)}{_allocation(device)}; "
        "use smaller shapes"
    )


def check_input(name: str, spec: TensorSpec, device: Device) -> None:
    """Raise LimitError when an input is larger than one allocation may be, before there is an array of it."""
    if spec.nbytes > max_allocation_bytes(device):
        raise LimitError(f"input {name!r}: {spec} takes {_beyond_allocation(spec.nbytes, device)}")


def check_values(bound: BoundGraph, device: Device) -> None:
    """Raise LimitError when a value that nodes read or write is larger than one allocation may be. Comes first: for
    values out of all proportion, programs may have a million launches."""
    most = max_allocation_bytes(device)
    for node in bound.nodes:
        for value in (*node.reads.values(), *node.writes.values()):
            nbytes = bound.specs[value].nbytes
            if nbytes > most and value not in bound.constants:
                raise LimitError(f"{bound.name}, {node}: {value!r} takes {_beyond_allocation(nbytes, device)}")


def check_memory(graph: str, memory: Memory, device: Device) -> None:
    """Raise LimitError when what stays on the device is larger than its heap, or a host-visible buffer larger
    than one allocation may be."""
    if memory.device_bytes > device.heap_bytes:
        raise LimitError(
            f"{graph}: activations and weights take {exact_bytes(memory.device_bytes)}, "
            f"the memory of {device.name} is {exact_bytes(device.heap_bytes)}"
            f"{_assumed(device, 'memoryHeaps')}; use smaller shapes or another device"
        )
    most = max_allocation_bytes(device)
    for what, nbytes in (
        ("weights to load", memory.load_bytes),
        ("inputs", memory.upload_bytes),
        ("outputs", memory.download_bytes),
    ):
        if nbytes > most:
            raise LimitError(f"{graph}: the {what} take {_beyond_allocation(nbytes, device)} or another device")


def check_budget(graph: str, memory: Memory, budget_bytes: int) -> None:
    """Raise LimitError when a plan takes more than the user allows it."""
    if memory.peak_bytes > budget_bytes:
        raise LimitError(
            f"{graph}: activations, weights, inputs and outputs take {exact_bytes(memory.peak_bytes)}, the memory "
            f"allowed is {exact_bytes(budget_bytes)}; use smaller shapes or allow more"
        )


def _dispatch_limits(dispatch: Dispatch, device: Device) -> Iterator[tuple[str, int, int]]:
    yield "maxComputeWorkGroupInvocations", math.prod(dispatch.local), device.limit("maxComputeWorkGroupInvocations")
    yield "maxComputeSharedMemorySize", dispatch.shared_bytes, device.limit("maxComputeSharedMemorySize")
    yield "maxPushConstantsSize", dispatch.push_size, device.limit("maxPushConstantsSize")
    kinds = Counter(binding.kind for binding in dispatch.shader.interface.bindings)
    yield _BUFFERS, kinds["buffer"], device.limit(_BUFFERS)
    for kind, limits in _OF_TEXTURES.items():
        if kinds[kind]:
            yield from ((limit, kinds[kind], most(limit, device)) for limit in limits)
    if device.max_loop_iterations is not None:
        yield "loop iterations of one invocation (a driver quirk)", dispatch.loop_iterations, device.max_loop_iterations
    sizes, counts = device.limits("maxComputeWorkGroupSize"), device.limits("maxComputeWorkGroupCount")
    for axis in range(3):
        yield f"maxComputeWorkGroupSize.{_AXES[axis]}", dispatch.local[axis], sizes[axis]
        yield f"maxComputeWorkGroupCount.{_AXES[axis]}", dispatch.groups[axis], counts[axis]
