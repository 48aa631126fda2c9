"""Needs that routes of several ops share: element types, sizes, scratch, workgroup limits, device classes."""

from collections.abc import Callable
from typing import cast

from vkconv.call import HALVES, Call
from vkconv.core import DType, bytes_str
from vkconv.device import Device, target_of
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import defaults, most_invocations, most_shared_bytes
from vkconv.ops.core.bindings import most_bound
from vkconv.policy import Policy
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route


class _AskedError(Exception):
    """A requirement looked at the device."""


class _NoDevice:
    def __getattr__(self, name: str) -> object:
        raise _AskedError(name)


_NO_DEVICE = cast(Device, _NoDevice())


def rules_out(call: Call, route: Route) -> bool:
    """Whether the call itself rules a route out, on any device: a requirement fails that looks at no device."""

    def fails(need: Requirement) -> bool:
        try:
            return not need.test(call, _NO_DEVICE)
        except _AskedError:
            return False

    return any(map(fails, route.must))


def types_of(call: Call) -> str:
    """The element types of a call, as a refusal tells them."""
    return ", ".join(f"{name} is {spec.dtype}" for name, spec in call.specs.items())


def _admitted(spec: TensorSpec | None, dtypes: tuple[DType, ...]) -> bool:
    return spec is None or spec.dtype in dtypes or (spec.dtype in HALVES and DType.F32 in dtypes)


def _words(dtypes: tuple[DType, ...]) -> str:
    return " or ".join("f32, f16 or bf16" if dtype is DType.F32 else dtype for dtype in dtypes)


def elements_in(*dtypes: DType) -> Requirement:
    """Every operand and output has one of these element types (integers of other widths fold on the host), f16 and bf16
    where f32 is one of them; floats are all of one type."""

    def test(call: Call, device: Device) -> bool:
        specs = call.specs.values()
        return all(_admitted(s, dtypes) for s in specs) and len({s.dtype for s in specs if s.dtype.is_float}) <= 1

    words = f"{_words(dtypes)} elements"
    return Requirement(words, test, lambda call, device: types_of(call), halves=DType.F32 in dtypes)


FLOATS = elements_in(DType.F32)
F32_OR_I32 = elements_in(DType.F32, DType.I32)
NUMBERS = elements_in(DType.F32, DType.I32, DType.I64)
WORDS = elements_in(DType.F32, DType.I32, DType.U32)
WORDS_OR_PAIRS = elements_in(DType.F32, DType.I32, DType.U32, DType.I64)
NO_HALVES = Requirement(
    "no 16-bit floats, which no atomic operation adds to",
    lambda call, device: call.half is None,
    lambda call, device: types_of(call),
    halves=False,
)


def operands_in(name: str, *dtypes: DType, halves: bool = True) -> Requirement:
    """The named operand has one of these element types, with ``halves`` f16 or bf16 where f32 is one of them."""
    taken = halves and DType.F32 in dtypes

    def test(call: Call, device: Device) -> bool:
        spec = call.operands.get(name)
        return _admitted(spec, dtypes) if taken else spec is None or spec.dtype in dtypes

    text = f"{name} of {_words(dtypes) if taken else ' or '.join(dtypes)} elements"
    return Requirement(text, test, lambda call, device: str(call.operands.get(name)), halves=taken or None)


# The largest number that an int of a shader counts to.
MOST_INT = (1 << 31) - 1


def most_elements(call: Call) -> int:
    """Elements of the largest operand or output."""
    return max(spec.size for spec in (*call.operands.values(), *call.outputs.values()) if spec is not None)


INT32 = Requirement.of("tensors of fewer than 2^31 elements", most_elements, lambda most: most <= MOST_INT)


_SCRATCH_MIB = Policy("kernels.scratch_mib", int)


def scratch_budget(device: Device) -> int:
    """Bytes that the partial results of a call may take: a launch binds all of them."""
    return min(_SCRATCH_MIB.of(device) << 20, most_bound(device))


def within_scratch(nbytes: Callable[[Call, Device], int], what: str = "partial results") -> Requirement:
    """What a call keeps in scratch, ``nbytes``, within the budget."""
    return Requirement(
        f"{what} within the device's budget of scratch",
        lambda call, device: nbytes(call, device) <= scratch_budget(device),
        lambda call, device: f"{bytes_str(nbytes(call, device))}, {bytes_str(scratch_budget(device))} is the most",
    )


LONG_ROW = Policy("kernels.long_row", int)


def lane_by_lane(device: Device) -> bool:
    """Whether the lanes of a subgroup are those of a core's vector unit: a load goes lane by lane, shared memory is
    memory like any other, a barrier suspends every lane, registers lie in the cache, and a few invocations keep all
    cores busy (lavapipe; docs/decisions/0003)."""
    return target_of(device).lane_by_lane


def _class(call: Call, device: Device) -> str:
    return target_of(device).device_class


ON_GPU = Requirement("a GPU", lambda call, device: not lane_by_lane(device), _class)
ON_CPU = Requirement("a CPU driver", lambda call, device: lane_by_lane(device), _class)
_UNROLLS = Policy("kernels.unrolls", bool)


def unrolls(device: Device) -> bool:
    """Whether it is a CPU driver that unrolls loops over tiles, whose counts are specialization constants: only then do
    sums, and what lanes hand each other, stay in registers."""
    return lane_by_lane(device) and _UNROLLS.of(device)


UNROLLS = Requirement(
    "a CPU driver that unrolls loops over tiles",
    lambda call, device: unrolls(device),
    lambda call, device: f"{_class(call, device)} ({_UNROLLS.said(device)})",
)


TILES_KEPT = Requirement(
    "a GPU, or a CPU driver that unrolls loops over tiles",
    lambda call, device: _UNROLLS.of(device),
    UNROLLS.actual,
)


def shuffles(device: Device) -> bool:
    """Whether the lanes of a subgroup can read each other's values."""
    return "shuffle" in device.subgroup_operations


def subgroup_arithmetic(device: Device) -> bool:
    """Whether the lanes of a subgroup can sum their values or take their maximum."""
    return "arithmetic" in device.subgroup_operations


def float_atomics(device: Device) -> bool:
    """Whether the device adds to a float of a buffer by an atomic operation of its own."""
    feature = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "shaderBufferFloat32AtomicAdd"
    return device.has("VK_EXT_shader_atomic_float") and device.feature(*feature)


def _subgroup_operations(call: Call, device: Device) -> str:
    return ", ".join(sorted(device.subgroup_operations)) or "no operations"


SHUFFLE = Requirement("shuffles within subgroups", lambda call, device: shuffles(device), _subgroup_operations)
ARITHMETIC = Requirement(
    "arithmetic within subgroups", lambda call, device: subgroup_arithmetic(device), _subgroup_operations
)


def loop_iterations(count: Callable[[Call, Device], int]) -> Requirement:
    """No more loop iterations per invocation than the driver makes; most drivers have no such limit."""
    return Requirement(
        "loops that the driver runs to their end",
        lambda call, device: device.max_loop_iterations is None or count(call, device) <= device.max_loop_iterations,
        lambda call, device: f"{count(call, device)} iterations, it stops at {device.max_loop_iterations}",
    )


def most_iterations(program: Program) -> int:
    """Loop iterations of an invocation, of whatever launch has the most."""
    return max(step.loop_iterations for step in program.steps)


def loops_end(build: Callable[[Call, Device, Params], Program], params: Callable[[Call, Device], Legal]) -> Requirement:
    """`loop_iterations` of what a route builds by the defaults of its parameters."""
    return loop_iterations(lambda call, device: most_iterations(build(call, device, defaults(params(call, device)))))


def shared_bytes(need: int) -> Requirement:
    """At least ``need`` bytes of shared memory for one workgroup."""
    text = f"{bytes_str(need)} of shared memory"
    return Requirement.of_device(text, most_shared_bytes, lambda nbytes: nbytes >= need, bytes_str)


def invocations(need: int) -> Requirement:
    """Workgroups of at least ``need`` invocations along x."""
    return Requirement.of_device(f"workgroups of {need} invocations", most_invocations, lambda most: most >= need)


def takes_less(compared: Callable[[Call, Device], tuple[float, float] | None], text: str) -> Requirement:
    """The requirement that a route takes less time than another, by estimates of both, us, in that order; not met where
    there are none."""
    return Requirement(
        f"less time{text}, by the costs of both",
        lambda call, device: (us := compared(call, device)) is not None and us[0] < us[1],
        lambda call, device: "about {:.3g} us and {:.3g}".format(*us) if (us := compared(call, device)) else "no costs",
    )
