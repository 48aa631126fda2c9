"""Programs for floats of 16 bits: which shaders have which forms, and what becomes of a program that was written for
f32."""

import copy
import dataclasses
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from shipped import share

from vkconv import shaders
from vkconv.call import HALVES
from vkconv.compiler import spirv
from vkconv.core import DType, GraphError, RouteError, VkconvError
from vkconv.device import Device, load_device
from vkconv.glsl import source_files
from vkconv.kernel import Shader
from vkconv.ops import OPS, all_shaders
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.op_layouts import LAYOUT, W_LAYOUT
from vkconv.plan.explain import explain_call
from vkconv.program import Composite, Dispatch, Program
from vkconv.route import choose, judge
from vkconv.storage import HALF_MATH, PACKED, binding_type, check_types, forms, stored, stores_natively

X_F32 = ("X_F32", "")
LAVAPIPE = load_device("lavapipe")
FORMS = {form for op in OPS.values() for route in op.routes for form in route.forms}
TAKEN = {s for op in OPS.values() for route in op.routes if route.takes_halves for s in route.shaders}


def without_storage(device):
    facts = copy.deepcopy(dict(device.facts))
    facts["features"]["VkPhysicalDevice16BitStorageFeatures"]["storageBuffer16BitAccess"] = False
    return Device(facts)


POOR = without_storage(LAVAPIPE)


def half_calls(dtype="f16"):
    """Cases of all ops as calls in a 16-bit type."""
    for op in OPS.values():
        for text in op.cases:
            try:
                call = parse_call(f"{text},dtype={dtype}", OPS)
            except VkconvError:
                continue
            if call.half and not call.is_empty:
                yield call


def steps(program):
    return (*program.prepack, *program.steps)


# ---- forms of shaders


def test_forms_are_of_sixteen_bits_and_told_apart():
    for shader in TAKEN:
        made = list(forms(shader))
        assert len(set(made)) == len(made) == len({form.key for form in made})
        assert all(form.dtype.nbytes == 2 and form.stem == shader.stem for form in made)
        assert all(form.defines[: len(shader.defines)] == shader.defines for form in made)
        packed = sum(PACKED in form.defines for form in made)
        assert packed == (0 if shader.kernel.matrices else len(made) / 2)


@pytest.mark.parametrize(
    ("shader", "dtypes", "scratch"),
    [
        (Shader(shaders.reduce.REDUCE), HALVES, ("", ".X_F32", ".Y_F32")),
        (Shader(shaders.kernels.SUM_SPLIT_K), HALVES, ("", ".Y_F32")),
        (Shader(shaders.pointwise.UNARY), HALVES, ("",)),
        (Shader(shaders.pointwise.CLASSIFY, DType.U32), HALVES, ("",)),
        (Shader(shaders.pointwise.WHERE, DType.U32), (DType.U16,), ("",)),
        (Shader(shaders.kernels.MATMUL_REGISTER, DType.F32, (HALF_MATH,)), (DType.F16,), ("", ".Y_F32")),
    ],
)
def test_forms_follow_from_the_declaration(shader, dtypes, scratch):
    defines = "".join(f".{name}" for name, _ in shader.defines)
    keys = {f"{shader.stem}.{d}{defines}{f32}{more}" for d in dtypes for f32 in scratch for more in ("", ".PACKED")}
    assert {form.key for form in forms(shader)} == keys


def test_matrices_have_no_packed_forms_and_integers_none():
    cooperative = Shader(shaders.kernels.MATMUL_COOPERATIVE, DType.F16)
    assert [form.key for form in forms(cooperative)] == ["matmul_cooperative.f16", "matmul_cooperative.bf16"]
    assert not list(forms(Shader(shaders.reduce.REDUCE, DType.I32)))


_OF_ELEMENTS = ("common.glsl", "storage16.glsl", "conversions16.glsl")


def test_what_moves_bits_says_so():
    """Kernels of words take any two bytes where they move them, else they ask for the element's type: one includes what
    makes values of bits, or asks whether they are floats."""
    looks = re.compile(r"\b(FROM_WORD|VALUE_IS_FLOAT|from_bits)\b")

    def looks_at_values(stem):
        files = [file for file in source_files(stem) if file.name not in _OF_ELEMENTS]
        return any(looks.search(file.read_text()) for file in files)

    words = {shader.kernel for shader in TAKEN if shader.dtype is DType.U32}
    assert len(words) > 10
    assert {kernel.name for kernel in words if kernel.moves} == {k.name for k in words if not looks_at_values(k.name)}


@pytest.mark.long
def test_forms_for_devices_without_storage_compile():
    """What ships is compiled by test_shaders.py. Of these, 172: f16 differs by two functions."""
    wanted = [form for form in FORMS if PACKED in form.defines and form.dtype is not DType.F16]
    assert len(wanted) > 150 and not set(wanted) & set(all_shaders())
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(spirv, share(3, wanted)))


# ---- programs


@pytest.mark.long
def test_every_program_uses_declared_forms_and_no_more_bytes():
    used = set()
    for device in (POOR, load_device("h200")):
        for call in share(2, half_calls("bf16")):
            wide = call.in_f32()
            for route in OPS[call.op].routes:
                if not (route.takes_halves and judge(route, call, device).allowed):
                    continue
                program = route.build(call, device)
                before = route.program(wide, device, route.own({}, wide, device))
                whole = isinstance(before, Program)
                reordered = len(call.specs) if {LAYOUT, W_LAYOUT} & call.attrs.keys() else 0
                more = len(steps(program)) - len(steps(before)) if whole else 0
                assert 0 <= more <= reordered and steps(program)
                # What has channels last in 16 bits alone is filled up to whole vectors of them.
                last = {route.own({}, one, device).get("last") for one in (call, wide)}
                for name, nbytes in {**before.packed, **before.scratch}.items() if len(last) == 1 else ():
                    after = {**program.packed, **program.scratch}[name]
                    assert after * (2 if name in before.elements else 1) == nbytes
                for step in steps(program):
                    assert step.shader in (route.forms if whole else FORMS)
                    halves = step.shader.dtype in (*HALVES, DType.U16)
                    assert (PACKED in step.shader.defines) == (halves and not stores_natively(device))
                    used.add(step.shader)
    assert len(used) > 150


def launch(shader, **buffers):
    interface = shader.interface
    return Dispatch(
        shader,
        {**dict.fromkeys(binding.name for binding in interface.bindings), **buffers},
        groups=(1, 1, 1),
        local=(8, 1, 1),
        push={field.name: 0 if field.count == 1 else (0,) * field.count for field in interface.push},
    )


@pytest.mark.parametrize("device", [LAVAPIPE, POOR], ids=["native", "packed"])
def test_what_is_scratch_stays_f32_and_elements_halve(device):
    program = Program(
        (
            launch(Shader(shaders.conv2d.CONV2D_DIRECT), x="columns", weight="packed", y="part"),
            launch(Shader(shaders.reduce.REDUCE), x="part", y="y"),
            launch(Shader(shaders.pointwise.CAST, DType.I32), x="n", y="m"),
        ),
        prepack=(launch(Shader(shaders.kernels.STRIDED_COPY, DType.U32), x="w", y="packed"),),
        packed={"packed": 40},
        scratch={"columns": 80, "part": 120},
        elements=frozenset({"packed", "columns"}),
    )
    types = {"x": DType.BF16, "w": DType.BF16, "y": DType.BF16, "n": DType.I32, "m": DType.I32}
    made = stored(program, types, DType.BF16, device)
    more = "" if device is LAVAPIPE else ".PACKED"
    keys = [f"conv2d_direct.bf16.Y_F32{more}", f"reduce.bf16.X_F32{more}", "cast.i32"]
    assert [step.shader.key for step in made.steps] == keys
    assert made.prepack[0].shader.key == f"strided_copy.u16{more}"
    assert made.packed == {"packed": 20} and made.scratch == {"columns": 40, "part": 120}
    assert [step.binds for step in made.steps] == [step.binds for step in program.steps]
    check_types(made, types)


@pytest.mark.parametrize(
    ("shader", "constants", "found"),
    [
        (Shader(shaders.reduce.REDUCE, DType.F16), {}, {"x": DType.F16, "y": DType.F16}),
        (Shader(shaders.reduce.REDUCE, DType.F16, (X_F32,)), {}, {"x": DType.F32, "y": DType.F16}),
        (Shader(shaders.reduce.REDUCE, DType.I32), {}, {"x": DType.I32, "y": DType.I32}),
        (Shader(shaders.kernels.WINOGRAD_OUTPUT_GRADIENT, DType.F16, (PACKED,)), {}, {"dy": DType.F16, "u": DType.F32}),
        (Shader(shaders.kernels.WINOGRAD_INPUT, DType.BF16, (PACKED,)), {}, {"x": DType.BF16, "v": DType.BF16}),
        (Shader(shaders.pointwise.CAST, DType.U32), {}, {"x": None, "y": None}),
        (Shader(shaders.conv2d.CONV2D_COOPERATIVE, DType.F16), {"SPLIT_K": 1}, {"x": DType.F16, "y": DType.F16}),
        (Shader(shaders.conv2d.CONV2D_COOPERATIVE, DType.F16), {"SPLIT_K": 2}, {"x": DType.F16, "y": DType.F32}),
    ],
)
def test_what_a_binding_takes_elements_for(shader, constants, found):
    made = dataclasses.replace(launch(shader), constants=constants)
    bindings = {binding.name: binding for binding in shader.interface.bindings}
    assert {name: binding_type(made, bindings[name]) for name in found} == found


@pytest.mark.long
def test_calls_of_f32_are_as_they_were():
    for op in OPS.values():
        for text in op.cases[:3]:
            call = parse_call(text, OPS)
            if call.half is None:
                assert call.in_f32() == call
                for route in op.routes:
                    if judge(route, call, LAVAPIPE).allowed:
                        made = route.build(call, LAVAPIPE)
                        written = route.program(call, LAVAPIPE, route.own({}, call, LAVAPIPE))
                        assert isinstance(written, Composite) or made == written
                        assert {s.shader for s in steps(made)} <= (FORMS if made != written else set(route.shaders))
                        assert not any(s.shader.dtype.nbytes == 2 for s in steps(made))


@pytest.mark.long
def test_a_half_is_refused_by_atomic_sums_and_as_an_index_only():
    refused = set()
    for call in half_calls():
        for route in OPS[call.op].routes:
            wide, half = (judge(route, c, LAVAPIPE) for c in (call.in_f32(), call))
            if wide.allowed and not half.allowed:
                refused.add((half.refused_by, call.op))
    atomic = "no 16-bit floats, which no atomic operation adds to"
    sums = ("conv2d_backward_weight", "conv3d_backward_weight", "conv_reduce", "gemm_reduce", "reduce")
    written_once = ("a bias and activation that leave 0 as it is, or f32", "conv2d_backward_data")
    indices = ("indices of f32 or i32 or i64 elements", "one_hot")
    # Half as many bytes may end where no binding begins.
    images = "images of which an equal number fits a binding each time, and begins where one may"
    by_images = ((images, op) for op in ("conv2d", "conv2d_backward_data", "conv_transpose2d"))
    assert refused == {written_once, indices, *by_images, *((atomic, op) for op in sums)}


# ---- refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("conv2d:x=1x3x8x8,w=4x3x3x3:f16", "operands of one float dtype"),
        ("matmul:a=3x4:bf16,b=4x6:f16", "one float dtype"),
        ("add:a=3:f16,b=3", "f16"),
        ("where:cond=3:bool,a=3:f16,b=3:bf16", "bf16"),
        ("concat:x0=3:f16,x1=3,axis=0", "f16"),
    ],
)
def test_types_that_are_mixed_are_refused(text, message):
    with pytest.raises(GraphError, match=message):
        parse_call(text, OPS)


def test_a_route_that_takes_no_halves_says_why():
    call = parse_call("reduce:x=3x4099,op=sum,axes=1,dtype=f16", OPS)
    with pytest.raises(RouteError, match="no 16-bit floats, which no atomic operation adds to"):
        choose(OPS["reduce"].routes, call, LAVAPIPE, forced="atomic")


def test_explain_tells_how_halves_lie():
    told = {}
    for name, device in {"native": LAVAPIPE, "packed": POOR}.items():
        for dtype in ("f32", "f16"):
            table, data = explain_call(parse_call(f"relu:x=3x5,dtype={dtype}", OPS), device)
            told[name, dtype] = table.title, data["shaders"]
    assert told["native", "f16"][0].endswith("; elements of 16 bits, sums in f32")
    assert "two to a word, since the device has no 16-bit storage" in told["packed", "f16"][0]
    assert "16" not in told["native", "f32"][0].partition(": ")[2]
    assert told["native", "f16"][1] == [told["native", "f32"][1][0].replace(".f32", ".f16")]
    assert told["packed", "f16"][1] == [f"{told['native', 'f16'][1][0]}.PACKED"]


def test_half_the_bytes_count_as_compulsory():
    for text in ("conv2d:x=2x3x8x8,w=4x3x3x3,b=4,p=1", "softmax:x=5x7", "gather:x=5x7,indices=3:i32"):
        half, wide = parse_call(f"{text},dtype=bf16", OPS), parse_call(text, OPS)
        indices = sum(spec.nbytes for spec in wide.specs.values() if not spec.dtype.is_float)
        op = OPS[wide.op]
        assert 2 * (op.compulsory_bytes(half) - indices) == op.compulsory_bytes(wide) - indices
