"""Conditions that routes of several ops share."""

from vkconv.core import DType, bytes_str
from vkconv.device import Device
from vkconv.route import Call, Need


def _float_dtypes(call: Call) -> set[DType]:
    specs = [*call.operands.values(), *call.outputs.values()]
    return {s.dtype for s in specs if s is not None}


F32 = Need(
    "f32 operands",
    lambda call, device: _float_dtypes(call) == {DType.F32},
    lambda call, device: ", ".join(sorted(_float_dtypes(call))),
)
ON_CPU_DRIVER = Need(
    "a CPU driver (no fast shared memory)",
    lambda call, device: device.kind == "cpu",
    lambda call, device: device.kind,
)
ON_GPU = Need("a GPU", lambda call, device: device.kind != "cpu", lambda call, device: device.kind)


def shared_bytes(need: int) -> Need:
    """At least ``need`` bytes of shared memory for one workgroup."""
    return Need(
        f"{bytes_str(need)} of shared memory",
        lambda call, device: device.limit("maxComputeSharedMemorySize") >= need,
        lambda call, device: bytes_str(device.limit("maxComputeSharedMemorySize")),
    )


def invocations(need: int) -> Need:
    """Workgroups of at least ``need`` invocations along x."""

    def most(device: Device) -> int:
        return min(device.limit("maxComputeWorkGroupInvocations"), device.limits("maxComputeWorkGroupSize")[0])

    return Need(
        f"workgroups of {need} invocations",
        lambda call, device: most(device) >= need,
        lambda call, device: str(most(device)),
    )
