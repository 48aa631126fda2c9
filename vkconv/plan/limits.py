"""Device limits, checked for every dispatch when it is planned; each error names both numbers."""

import math
from collections.abc import Iterator

from vkconv.core import LimitError
from vkconv.device import Device
from vkconv.plan.commands import Launch
from vkconv.shader import Dispatch

_AXES = "xyz"


def check_dispatch(where: str, dispatch: Dispatch, device: Device) -> None:
    """Raise LimitError when a dispatch exceeds a limit of the device; ``where`` names the node and its call."""
    for limit, value, most in _dispatch_limits(dispatch, device):
        if value > most:
            raise LimitError(
                f"{where}: {dispatch.shader.key} needs {limit} = {value}, {device.name} allows {most}; "
                "force another route with --route, or use smaller shapes"
            )


def check_launch(where: str, launch: Launch, device: Device) -> None:
    """Raise LimitError when a bound region is larger than a storage buffer binding may be."""
    most = device.limit("maxStorageBufferRange")
    for region, _ in launch.binds:
        if region.nbytes > most:
            raise LimitError(
                f"{where}: {launch.shader.key} binds {region.nbytes} bytes, maxStorageBufferRange of "
                f"{device.name} is {most}; use smaller shapes"
            )


def _dispatch_limits(dispatch: Dispatch, device: Device) -> Iterator[tuple[str, int, int]]:
    yield "maxComputeWorkGroupInvocations", math.prod(dispatch.local), device.limit("maxComputeWorkGroupInvocations")
    yield "maxComputeSharedMemorySize", dispatch.shared_bytes, device.limit("maxComputeSharedMemorySize")
    yield "maxPushConstantsSize", 4 * len(dispatch.push), device.limit("maxPushConstantsSize")
    yield (
        "maxPerStageDescriptorStorageBuffers",
        len(dispatch.binds),
        device.limit("maxPerStageDescriptorStorageBuffers"),
    )
    if device.max_loop_iterations is not None:
        yield "loop iterations of one invocation (a driver quirk)", dispatch.loop_iterations, device.max_loop_iterations
    sizes, counts = device.limits("maxComputeWorkGroupSize"), device.limits("maxComputeWorkGroupCount")
    for axis in range(3):
        yield f"maxComputeWorkGroupSize.{_AXES[axis]}", dispatch.local[axis], sizes[axis]
        yield f"maxComputeWorkGroupCount.{_AXES[axis]}", dispatch.groups[axis], counts[axis]
