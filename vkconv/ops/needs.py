"""Needs that routes of several ops share: element types, sizes, scratch, workgroup limits, device classes."""

from collections.abc import Callable, Mapping

from vkconv.core import DType, bytes_str
from vkconv.device import Device
from vkconv.ops.base import most_invocations
from vkconv.route import Call, Need


def _dtypes(call: Call) -> str:
    named = {**call.operands, **call.outputs}
    return ", ".join(f"{name} is {spec.dtype}" for name, spec in named.items() if spec is not None)


def elements_in(*dtypes: DType) -> Need:
    """Every operand and output has one of these element types (integers of other widths fold on the host)."""

    def test(call: Call, device: Device) -> bool:
        specs = (*call.operands.values(), *call.outputs.values())
        return all(s is None or s.dtype in dtypes for s in specs)

    return Need(f"{' or '.join(dtypes)} elements", test, lambda call, device: _dtypes(call))


F32 = elements_in(DType.F32)
F32_OR_I32 = elements_in(DType.F32, DType.I32)
NUMBERS = elements_in(DType.F32, DType.I32, DType.I64)
WORDS = elements_in(DType.F32, DType.I32, DType.U32)
WORDS_OR_PAIRS = elements_in(DType.F32, DType.I32, DType.U32, DType.I64)


def operands_in(name: str, *dtypes: DType) -> Need:
    """The named operand has one of these element types."""

    def test(call: Call, device: Device) -> bool:
        spec = call.operands.get(name)
        return spec is None or spec.dtype in dtypes

    return Need(f"{name} of {' or '.join(dtypes)} elements", test, lambda call, device: str(call.operands.get(name)))


# The largest number that an int of a shader counts to.
MOST_INT = (1 << 31) - 1


def most_elements(call: Call) -> int:
    """Elements of the largest operand or output."""
    return max(spec.size for spec in (*call.operands.values(), *call.outputs.values()) if spec is not None)


INT32 = Need(
    "tensors of fewer than 2^31 elements",
    lambda call, device: most_elements(call) <= MOST_INT,
    lambda call, device: str(most_elements(call)),
)

# Bytes of partial results that a call may take, by kind of device.
_SCRATCH_BYTES: Mapping[str, int] = {"cpu": 64 << 20, "integrated": 64 << 20}
_SCRATCH_BYTES_ELSE = 256 << 20


def scratch_budget(device: Device) -> int:
    """Bytes that the partial results of a call may take."""
    return _SCRATCH_BYTES.get(device.kind, _SCRATCH_BYTES_ELSE)


def within_scratch(nbytes: Callable[[Call, Device], int], what: str = "partial results") -> Need:
    """What a call keeps in scratch, ``nbytes``, within the budget."""
    return Need(
        f"{what} within the device's budget of scratch",
        lambda call, device: nbytes(call, device) <= scratch_budget(device),
        lambda call, device: f"{bytes_str(nbytes(call, device))}, {bytes_str(scratch_budget(device))} is the most",
    )


ASKED_FOR = Need("to be asked for by name", lambda call, device: False, lambda call, device: "not asked for")
# A row of so many elements keeps the lanes of a GPU's workgroup busy; shorter ones are better off with one invocation
# each.
LONG_ROW = 64

ON_GPU = Need("a GPU", lambda call, device: device.kind != "cpu", lambda call, device: device.kind)
ON_CPU = Need("a CPU driver", lambda call, device: device.kind == "cpu", lambda call, device: device.kind)


def shuffles(device: Device) -> bool:
    """Whether every subgroup of the device has the same size and its lanes can read each other's values."""
    return "shuffle" in device.subgroup_operations and device.subgroup_sizes == (device.subgroup_size,) * 2


def float_atomics(device: Device) -> bool:
    """Whether the device adds to a float of a buffer by an atomic operation of its own."""
    feature = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "shaderBufferFloat32AtomicAdd"
    return device.has("VK_EXT_shader_atomic_float") and device.feature(*feature)


SHUFFLE = Need(
    "shuffles in subgroups of one size",
    lambda call, device: shuffles(device),
    lambda call, device: (
        f"subgroups of {' to '.join(str(size) for size in sorted(set(device.subgroup_sizes)))} with "
        f"{', '.join(sorted(device.subgroup_operations)) or 'no operations'}"
    ),
)


def loop_iterations(count: Callable[[Call, Device], int]) -> Need:
    """No more loop iterations per invocation than the driver makes; most drivers have no such limit."""
    return Need(
        "loops that the driver runs to their end",
        lambda call, device: device.max_loop_iterations is None or count(call, device) <= device.max_loop_iterations,
        lambda call, device: f"{count(call, device)} iterations, it stops at {device.max_loop_iterations}",
    )


def shared_bytes(need: int) -> Need:
    """At least ``need`` bytes of shared memory for one workgroup."""
    return Need(
        f"{bytes_str(need)} of shared memory",
        lambda call, device: device.limit("maxComputeSharedMemorySize") >= need,
        lambda call, device: bytes_str(device.limit("maxComputeSharedMemorySize")),
    )


def invocations(need: int) -> Need:
    """Workgroups of at least ``need`` invocations along x."""
    return Need(
        f"workgroups of {need} invocations",
        lambda call, device: most_invocations(device) >= need,
        lambda call, device: str(most_invocations(device)),
    )
