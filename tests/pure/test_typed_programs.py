"""Every program of every shipped device file: each buffer is read in the form in which it was written, and what its
launches ask for is there."""

import dataclasses
from collections.abc import Mapping

import pytest
from every_program import Way, ways
from reflection import Module
from shipped import share

from vkconv import shaders
from vkconv.compiler import spirv
from vkconv.core import DType, ShaderError
from vkconv.device import Device, load_device
from vkconv.kernel import Form, Kernel, Shader
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.program import Composite, Dispatch, Inner, Program
from vkconv.route import Route, Sub, choose, judge
from vkconv.storage import NATIVE, PACKED, check_types, stored

# Kernels whose launches name an upper bound of their shared memory: of tiles of matrices, over the layouts of their
# operands; of sums that meet, over the windows.
BOUNDED = {"backward_weight_cooperative", "backward_weight_skinny", "conv2d_cooperative", "conv2d_fragment"}
BOUNDED |= {"matmul_cooperative"}

_MODEL = "VkPhysicalDeviceVulkanMemoryModelFeatures"
_BFLOAT16 = "VkPhysicalDeviceShaderBfloat16FeaturesKHR"
# What a device that runs a module of a capability must have, beside Vulkan 1.1: features, extensions, and operations
# of subgroups.
FEATURES = {
    "AtomicFloat32AddEXT": ("VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "shaderBufferFloat32AtomicAdd"),
    "BFloat16CooperativeMatrixKHR": (_BFLOAT16, "shaderBFloat16CooperativeMatrix"),
    "BFloat16TypeKHR": (_BFLOAT16, "shaderBFloat16Type"),
    "CooperativeMatrixKHR": ("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "cooperativeMatrix"),
    "DotProduct": ("VkPhysicalDeviceShaderIntegerDotProductFeatures", "shaderIntegerDotProduct"),
    "DotProductInput4x8BitPacked": ("VkPhysicalDeviceShaderIntegerDotProductFeatures", "shaderIntegerDotProduct"),
    "Float16": ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16"),
    "StorageBuffer16BitAccess": NATIVE,
    "VulkanMemoryModel": (_MODEL, "vulkanMemoryModel"),
}
EXTENSIONS = {
    "SPV_EXT_shader_atomic_float_add": "VK_EXT_shader_atomic_float",
    "SPV_KHR_bfloat16": "VK_KHR_shader_bfloat16",
    "SPV_KHR_cooperative_matrix": "VK_KHR_cooperative_matrix",
    "SPV_KHR_integer_dot_product": "VK_KHR_shader_integer_dot_product",
}
OPERATIONS = {
    "GroupNonUniform": "basic",
    "GroupNonUniformArithmetic": "arithmetic",
    "GroupNonUniformShuffle": "shuffle",
}
# Of the float controls, which are properties: results that the device rounds to f16.
PROPERTIES = {
    "RoundingModeRTE": ("VkPhysicalDeviceFloatControlsProperties", "shaderRoundingModeRTEFloat16"),
}


def lacking(module: Module, device: Device) -> list[str]:
    """Capabilities and extensions of a module that a device does not have; all that the tables do not know."""
    operations = device.subgroup_operations

    def has(name: str) -> bool:
        if name in FEATURES:
            return device.feature(*FEATURES[name])
        if name in PROPERTIES:
            return bool(device.fact(*PROPERTIES[name]))
        return name == "Shader" or OPERATIONS.get(name) in operations

    missing = [name for name in module.capabilities if not has(name)]
    # Part of Vulkan 1.2, or of a capability that is looked at above.
    known = {"SPV_KHR_vulkan_memory_model", "SPV_KHR_float_controls"}
    extensions = module.extensions - known
    return sorted(missing) + sorted(e for e in extensions if e not in EXTENSIONS or not device.has(EXTENSIONS[e]))


# Constants that launches may leave at their kernel's default. Any other that is not given was forgotten.
DEFAULTED = {
    "chain": {"STEP_0", "STEP_1", "STEP_2", "STEP_3"},  # nothing
    "conv2d_fragment": {"PADDED"},  # of a block that it shares
    "conv2d_gemm": {"SPLIT_K"},  # inside fused reductions, whose sums are whole
    "fill": {"ITEMS"},
}


class Reflected:
    """Modules by variant, and which launches have been looked at."""

    def __init__(self) -> None:
        self._modules: dict[Shader, Module] = {}
        self._seen: set[object] = set()

    def module(self, shader: Shader) -> Module:
        """Of a variant, or of the one that differs from it in nothing but native storage, which ships."""
        shader = Shader(shader.kernel, shader.dtype, tuple(d for d in shader.defines if d != PACKED))
        if shader not in self._modules:
            self._modules[shader] = Module(spirv(shader), shader.key)
        return self._modules[shader]

    def faults(self, launch: Dispatch, device: Device) -> list[str]:
        """How a launch's shared memory and its module's capabilities are other than it says and the device has."""
        sizes = (launch.shader, launch.local, tuple(launch.constants.items()), launch.shared_bytes)
        said = []
        if sizes not in self._seen:
            self._seen.add(sizes)
            taken = self.module(launch.shader).shared_bytes(launch.spec_words)
            equal = taken == launch.shared_bytes
            if not equal and not (launch.shader.stem in BOUNDED and taken < launch.shared_bytes):
                said.append(f"{launch.shader.key} takes {taken} bytes of shared memory, not {launch.shared_bytes}")
        if (launch.shader, device) not in self._seen:
            self._seen.add((launch.shader, device))
            missing = set(lacking(self.module(launch.shader), device))
            missing -= {"StorageBuffer16BitAccess"} if PACKED in launch.shader.defines else set()
            said += [f"{launch.shader.key} needs {name}" for name in sorted(missing)]
        return said


def forgotten(launch: Dispatch) -> list[str]:
    """Constants of its kernel that a launch gives no value."""
    declared = {constant.name for constant in launch.shader.interface.constants}
    missing = declared - launch.constants.keys() - DEFAULTED.get(launch.shader.stem, set())
    return [f"{launch.shader.key} is not told {name}" for name in sorted(missing)]


def faults(way: Way, reflected: Reflected) -> list[str]:
    """What is wrong with the program of a way: no more than one of its types, all of its launches."""
    try:
        program = way.route.build(way.call, way.device, way.params)
    except ShaderError as error:
        return [f"{way}: {error}"]
    launches = (*program.prepack, *program.steps)
    found = (text for launch in launches for text in (*reflected.faults(launch, way.device), *forgotten(launch)))
    return [f"{way}: {text}" for text in found]


@pytest.mark.long
@pytest.mark.share(1)
@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.routes))
def test_every_program_reads_what_was_written_and_has_what_it_needs(name: str) -> None:
    reflected = Reflected()
    found = [text for way in share(3, ways(OPS[name], nth=3)) for text in faults(way, reflected)]
    assert not found, f"{len(found)} faults\n" + "\n".join(found[:20])


# ---- the checks themselves, by defects that are planted

H200 = load_device("h200")
UNARY, REDUCE_F32 = Shader(shaders.pointwise.UNARY), Shader(shaders.reduce.REDUCE)
MATRICES = Shader(shaders.kernels.MATMUL_COOPERATIVE, DType.F16)
CALL = parse_call("relu:x=4x64,dtype=f16", OPS)
TYPES = {name: spec.dtype for name, spec in CALL.specs.items()}


def launch(shader: Shader, **buffers: str) -> Dispatch:
    """One launch with these buffers and none else, and zeros for push constants."""
    interface = shader.interface
    return Dispatch(
        shader,
        {**dict.fromkeys(binding.name for binding in interface.bindings), **buffers},
        groups=(1, 1, 1),
        local=(8, 1, 1),
        push={field.name: 0 if field.count == 1 else (0,) * field.count for field in interface.push},
    )


def checked(*steps: Dispatch, elements: frozenset[str] = frozenset(), types: Mapping[str, DType] = TYPES) -> Program:
    """A program from x to y by way of scratch, as `Route.build` makes it for a call of f16."""
    program = stored(Program(steps, scratch={"middle": 1024}, elements=elements), types, DType.F16, H200)
    check_types(program, types)
    return program


def refusal(shader: str, binding: str, taken: str, holds: str) -> str:
    return rf"^{shader}\S* takes 'middle' at its binding '{binding}' for {taken}, and it holds {holds}: "


def test_matrices_that_write_scratch_for_f32_sums_are_refused() -> None:
    """What was wrong on GPUs: 16-bit elements in scratch that the next launch read as f32."""
    steps = launch(MATRICES, a="x", b="x", y="middle"), launch(REDUCE_F32, x="middle", y="y")
    with pytest.raises(ShaderError, match=refusal(r"reduce\.f16", "x", "f32", "f16")):
        checked(*steps)
    made = checked(*steps, elements=frozenset({"middle"}))
    assert [step.shader.key for step in made.steps] == ["matmul_cooperative.f16", "reduce.f16"]
    in_f32 = MATRICES.having(("Y_F32", ""))
    made = checked(launch(in_f32, a="x", b="x", y="middle"), steps[1])
    assert [step.shader.key for step in made.steps] == ["matmul_cooperative.f16.Y_F32", "reduce.f16.X_F32"]


def test_matrices_that_are_fed_f32_are_refused() -> None:
    transform = launch(Shader(shaders.kernels.WINOGRAD_INPUT), x="x", v="middle")
    with pytest.raises(ShaderError, match=refusal(r"matmul_cooperative\.f16", "a", "f16", "f32")):
        checked(transform, launch(MATRICES, a="middle", b="x", y="y"))
    checked(transform, launch(Shader(shaders.kernels.WINOGRAD_OUTPUT), p="middle", y="y"))


def test_a_wrong_form_is_refused() -> None:
    sums = shaders.kernels.SUM_SPLIT_K
    slices = dataclasses.replace(sums.bindings[0], form=Form.ELEMENT)
    wrong = Kernel("wrong", (slices, *sums.bindings[1:]), sums.push, sums.constants)
    transform = launch(Shader(shaders.kernels.WINOGRAD_INPUT), x="x", v="middle")
    with pytest.raises(ShaderError, match=refusal(r"wrong\.f16", "slices", "f16", "f32")):
        checked(transform, launch(Shader(wrong), slices="middle", y="y"))
    checked(transform, launch(Shader(sums), slices="middle", y="y"))


def test_an_operand_of_another_type_is_refused() -> None:
    with pytest.raises(ShaderError, match=r"takes 'y' at its binding 'y' for f32, and it holds i32: "):
        checked(launch(REDUCE_F32, x="middle", y="y"), types={"y": DType.I32})


@pytest.mark.parametrize(
    ("held", "fits"), [(DType.I32, True), (DType.F32, True), (DType.F16, False), (DType.I64, False)]
)
def test_bits_are_moved_by_the_width_of_what_holds_them(held: DType, fits: bool) -> None:
    move = Program((launch(Shader(shaders.kernels.STRIDED_COPY, DType.U32), x="x", y="y"),))
    if fits:
        check_types(move, {"x": held, "y": held})
        return
    with pytest.raises(ShaderError, match=rf"takes 'x' at its binding 'x' for u32, and it holds {held}: "):
        check_types(move, {"x": held, "y": held})


def test_scratch_that_two_launches_write_in_two_forms_is_refused() -> None:
    first = launch(Shader(shaders.kernels.WINOGRAD_INPUT), x="x", v="middle")
    with pytest.raises(ShaderError, match=refusal(r"matmul_cooperative\.f16", "y", "f16", "f32")):
        checked(first, launch(MATRICES, a="x", b="x", y="middle"))


def in_turn(*, elements: frozenset[str] = frozenset(), second_in_f32: bool = False, own: bool = False) -> Route:
    """A route of relu by two inner ones, or by an inner one and a launch of its own."""
    subs = {
        "first": Sub(CALL, OPS["relu"].routes),
        "second": Sub(CALL.in_f32() if second_in_f32 else CALL, OPS["relu"].routes),
    }
    last = launch(REDUCE_F32, x="middle", y="y") if own else Inner("second", {"x": "middle"})
    made = Composite((Inner("first", {"y": "middle"}), last), scratch={"middle": 1024}, elements=elements)
    must = OPS["relu"].routes[-1].must
    return Route(
        "in_turn",
        lambda call, device, params: made,
        (UNARY, REDUCE_F32),
        why="planted",
        must=must,
        inner=lambda call, device, params: subs,
    )


def test_inner_calls_agree_on_the_scratch_between_them() -> None:
    assert judge(in_turn(), CALL, H200).allowed
    assert [step.shader.dtype for step in in_turn().build(CALL, H200).steps] == [DType.F16, DType.F16]
    with pytest.raises(ShaderError, match=refusal(r"unary\.f32", "x", "f32", "f16")):
        in_turn(second_in_f32=True).build(CALL, H200)


def test_a_composite_says_that_its_scratch_holds_elements() -> None:
    with pytest.raises(ShaderError, match=refusal(r"reduce\.f16", "x", "f32", "f16")):
        in_turn(own=True).build(CALL, H200)
    built = in_turn(own=True, elements=frozenset({"middle"})).build(CALL, H200)
    assert built.scratch == {"middle": 512} and [s.shader.key for s in built.steps] == ["unary.f16", "reduce.f16"]


def test_every_program_is_looked_at() -> None:
    """A route with the planted defect among those of an op is found, and named."""
    way = Way("relu:x=4x64,dtype=f16", CALL, H200, in_turn(own=True), {})
    (fault,) = faults(way, Reflected())
    assert fault.startswith("relu:x=4x64,dtype=f16 on NVIDIA H200 by in_turn: reduce.f16.X_F32 takes 'middle'")


def test_a_forgotten_constant_is_found() -> None:
    call = parse_call("conv3d_backward_weight:x=2x4x5x6x7,dy=2x6x5x6x7,w_shape=6x2x3x3x3,p=1,g=2", OPS)
    (step, *_) = choose(OPS[call.op].routes, call, H200).route.build(call, H200).steps
    assert step.constants["DEEP"] and not forgotten(step)
    kept = {name: value for name, value in step.constants.items() if name != "DEEP"}
    assert forgotten(dataclasses.replace(step, constants=kept)) == [f"{step.shader.key} is not told DEEP"]


def test_shared_memory_and_capabilities_are_looked_at() -> None:
    tiled = Shader(shaders.kernels.MATMUL_SHARED)
    module = Reflected().module(tiled)
    small, large = ({"BM": side, "BN": side, "BK": 16} for side in (32, 64))
    sized = [dataclasses.replace(launch(tiled, a="x", b="x", y="y"), constants=sides) for sides in (small, large)]
    nbytes = [module.shared_bytes(one.spec_words) for one in sized]
    assert 0 < nbytes[0] < nbytes[1]
    right = dataclasses.replace(sized[0], shared_bytes=nbytes[0])
    assert not Reflected().faults(right, H200)
    said = f"matmul_shared.f32 takes {nbytes[1]} bytes of shared memory, not {nbytes[0]}"
    assert Reflected().faults(dataclasses.replace(sized[1], shared_bytes=nbytes[0]), H200) == [said]
    atomic = launch(Shader(shaders.reduce.REDUCE_ATOMIC, DType.F32, (("ATOMIC_FLOAT", ""),)), x="x", y="y")
    pi = load_device("raspberry-pi-4")
    missing = ["needs AtomicFloat32AddEXT", "needs SPV_EXT_shader_atomic_float_add"]
    assert Reflected().faults(atomic, pi) == [f"reduce_atomic.f32.ATOMIC_FLOAT {name}" for name in missing]
