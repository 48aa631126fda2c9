"""The registry as a whole: every op, every case, every route, on every shipped device and on the least device."""

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from graph_kit import made_up_device

import vkconv
from vkconv.core import DType, GraphError, LimitError, RouteError, UsageError
from vkconv.device import load_device
from vkconv.graph.onnx.rules import RULES
from vkconv.ops import OPS, all_shaders
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.core.requirements import loop_iterations
from vkconv.plan.explain import explain_call
from vkconv.plan.limits import check_dispatch
from vkconv.route import judge
from vkconv.storage import PACKED

ROOT = Path(vkconv.__file__).parent
CASES = [text for op in OPS.values() for text in op.cases]
ON_DEVICE = [text for text in CASES if OPS[text.partition(":")[0]].routes]
# The others are given the same programs as one of these (tests/gpu/test_emulated_limits.py goes through them all).
DIFFERENT = ("lavapipe", "h200", "mali-g715", "adreno-618", "arc-a770", "powervr-bxs-4-64", "swiftshader")
SHIPPED = [load_device(name) for name in DIFFERENT]
# What Vulkan guarantees on every device (the "Required Limits" of its specification).
LEAST = made_up_device(
    "mali-g715",
    maxComputeWorkGroupCount=[65535] * 3,
    maxComputeWorkGroupInvocations=128,
    maxComputeWorkGroupSize=[128, 128, 64],
    maxComputeSharedMemorySize=16384,
    maxPushConstantsSize=128,
    maxPerStageDescriptorStorageBuffers=4,
    maxStorageBufferRange=1 << 27,
)
LOOPS = loop_iterations(lambda call, device: 0).text
# Ops that bind more storage buffers than every device has: five operands or six, or the statistics as further outputs.
MORE_BUFFERS = {"batch_norm", "batch_norm_training", "deform_conv2d", "layer_norm"}
MORE_BUFFERS |= {"conv_integer", "matmul_integer", "matmul_nbits", "qlinear_conv", "qlinear_matmul", "recurrence"}


def test_ops_are_sorted_and_known_under_their_own_names():
    assert list(OPS) == sorted(OPS)
    assert all(op.name == name for name, op in OPS.items())


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_an_op_explains_itself(op):
    assert op.doc.endswith(".") and len(op.doc) > 10
    assert op.cases
    assert not (op.alias and op.routes)
    for route in op.routes:
        assert len(route.why) > 20 and route.source
        assert all(len(n.text) > 2 for n in (*route.must, *route.prefer))
    assert len({r.name for r in op.routes}) == len(op.routes)
    assert len({o.name for o in op.operands}) == len(op.operands)
    words = [w for a in op.attrs for w in {a.name, a.key}]
    assert len(set(words)) == len(words), "a name or key stands for two attributes"
    assert not {a.key for a in op.attrs} & {o.name for o in op.operands if not o.host}, "a key is also an operand"


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.routes], ids=lambda op: op.name)
def test_the_last_route_has_no_preference(op):
    assert not op.routes[-1].prefer


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_a_call_has_one_text_and_one_form(op):
    for text in op.cases:
        call = parse_call(text, OPS)
        canonical = format_call(call, OPS)
        assert parse_call(canonical, OPS) == call
        assert format_call(parse_call(canonical, OPS), OPS) == canonical
        assert OPS[call.op].call(call.operands, call.attrs) == call


def test_different_cases_have_different_texts():
    canonical = [format_call(parse_call(text, OPS), OPS) for text in CASES]
    assert len(set(canonical)) == len(canonical)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.routes], ids=lambda op: op.name)
@pytest.mark.long
def test_the_last_route_takes_every_case_on_every_device(op):
    last = op.routes[-1]
    for text, device in itertools.product(op.cases, (*SHIPPED, LEAST)):
        call = parse_call(text, OPS)
        verdict = judge(last, call, device)
        if verdict.refused_by == LOOPS:  # a driver's fault, which another route must get around
            assert any(judge(route, call, device).allowed for route in op.routes)
            continue
        assert verdict.allowed, f"{text} on {device.name}: needs {verdict.refused_by}, here {verdict.actual}"


@pytest.mark.long
@pytest.mark.parametrize("text", ON_DEVICE)
def test_an_allowed_program_is_within_the_limits_and_as_declared(text):
    call = parse_call(text, OPS)
    for device in (*SHIPPED, LEAST):
        for route in OPS[call.op].routes:
            if not judge(route, call, device).allowed:
                continue
            program = route.build(call, device)
            made = {*program.packed, *program.scratch}
            known = {n for n, s in call.operands.items() if s is not None} | set(call.outputs) | made
            for dispatch in (*program.prepack, *program.steps):
                if device.limit("maxPerStageDescriptorStorageBuffers") == 4 and len(dispatch.binds) > 4:
                    assert call.op in MORE_BUFFERS
                    too_many = rf"maxPerStageDescriptorStorageBuffers = {len(dispatch.binds)}, .* allows 4"
                    with pytest.raises(LimitError, match=too_many):
                        check_dispatch("", dispatch, device)
                    continue
                check_dispatch(f"{route.name} on {device.name}", dispatch, device)
                assert dispatch.shader in (route.forms if call.half else route.shaders)
                assert {b.buffer for b in dispatch.binds} <= known
                assert min(dispatch.groups) >= 1
                dispatch.spec_words, dispatch.push_bytes  # noqa: B018 - both refuse words beyond 32 bits
            assert all(nbytes > 0 for nbytes in (*program.packed.values(), *program.scratch.values()))
            written = {b.buffer for d in (*program.prepack, *program.steps) for b in d.binds if "w" in b.access}
            assert written >= {n for n, s in call.outputs.items() if s.size} | made


@pytest.mark.long
def test_every_declared_shader_is_used_by_some_case():
    declared = {s for op in OPS.values() for route in op.routes for s in route.shaders if PACKED not in s.defines}
    of_halves = {shader.stem for shader in declared if shader.dtype is DType.F16}
    calls = [parse_call(text, OPS) for text in ON_DEVICE]
    used, seen = set(), set()
    # Nearly all are found where values that look alike are tried once; what is not, by trying them all.
    for again, device in itertools.product((False, True), (*SHIPPED, LEAST)):
        for text, call in zip(ON_DEVICE, calls, strict=True):
            unused = [route for route in OPS[call.op].routes if not set(route.shaders) & declared <= used]
            _use(used, call, unused, device, set() if again else seen)
            routes = [route for route in unused if of_halves & {shader.stem for shader in route.shaders}]
            if routes:
                _use(used, parse_call(f"{text},dtype=f16", OPS), routes, device, set() if again else seen)
    assert declared <= used <= {s for op in OPS.values() for route in op.routes for s in route.forms}
    assert declared < set(all_shaders())  # the others are tools', such as the floors that bench measures


def _use(used, call, routes, device, seen):
    """Add the shaders of a call by routes on a device, by every value of every parameter but where these and the
    shaders by default were ``seen``; of each route until all of its shaders are used."""
    for route in routes:
        if set(route.shaders) <= used or call.is_empty or not judge(route, call, device).allowed:
            continue
        legal = route.params(call, device).items()
        by_default = _shaders_of(route.build(call, device))
        used |= by_default
        alike = (call.op, route.name, tuple(legal), by_default)
        if alike not in seen:
            seen.add(alike)
            for params in ({name: value} for name, values in legal for value in values[1:]):
                used |= _shaders_of(route.build(call, device, params))


def _shaders_of(program):
    return frozenset(d.shader for d in (*program.prepack, *program.steps))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("con2d:x=1x1x3x3", r"no op 'con2d' \(did you mean 'conv2d'\?\)"),
        ("conv2d:x=1x1x3x3,w", "'w' is not one key=value"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,s=1,s=2", "s is given twice, as 1 and 2"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,stride=1,s=2", "stride is given twice, as stride and as s"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,dtype=f8", "'f8' is no dtype"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,dtype=bf61", r"'bf61' is no dtype \(did you mean 'bf16'\?\)"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,s=2.5", "stride='2.5' does not read as numbers such as 2x3"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,g=1.5", "groups='1.5' does not read as an integer"),
        ("conv2d:x=1x1x3x3,w=1x1x3x3,act_a=q", "act_a='q' does not read as a number"),
        ("reduce:x=3,keep=q", "keepdims='q' does not read as 0 or 1"),
        ("resize:x=1x1x3x3,scales=ax2", "scales='ax2' does not read as numbers such as 0.5x2"),
    ],
)
def test_a_text_that_is_no_call_says_where(text, message):
    with pytest.raises(UsageError, match=message):
        parse_call(text, OPS)


# ---- bad attributes


WRONG = {
    int: ["word", 1.5, (1, 2)],
    bool: ["word", (0,)],
    float: ["word", (1.0, 2.0)],
    str: [3, 1.5, (1,), "no such word"],
    tuple[int, ...]: ["word", (1.5,), ("a",), (), (-(2**40),), (2**40,) * 9],
    tuple[float, ...]: ["word", ("a",), ()],
}


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.attrs], ids=lambda op: op.name)
@pytest.mark.long
def test_a_wrong_attribute_is_refused_or_a_legal_call(op):
    """Whatever a file may hold as an attribute: a call that can be planned, or a refusal; no other exception."""
    for text, attr in itertools.product(op.cases, op.attrs):
        call = parse_call(text, OPS)
        for wrong in WRONG[attr.type]:
            with contextlib.suppress(GraphError, LimitError, RouteError):
                made = op.call(call.operands, {**call.attrs, attr.name: wrong})
                if op.routes and all(spec.size for spec in made.outputs.values()):
                    explain_call(made, SHIPPED[0])


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
@pytest.mark.long
def test_operands_of_any_rank_and_dtype_are_refused_or_a_legal_call(op):
    rng = np.random.default_rng(5)
    for text in op.cases[:6]:
        call = parse_call(text, OPS)
        for _ in range(20):
            operands = {}
            for name, spec in call.operands.items():
                shape = tuple(rng.integers(0, 4, rng.integers(0, 6)).tolist())
                dtype = rng.choice([s.dtype for s in call.operands.values() if s] + ["bool", "i64", "f16"])
                operands[name] = spec and type(spec)(shape, type(spec.dtype)(dtype))
            with contextlib.suppress(GraphError, LimitError, RouteError):
                made = op.call(operands, call.attrs)
                if op.routes and all(spec.size for spec in made.outputs.values()):
                    explain_call(made, SHIPPED[0])


# ---- the importer's side


def test_every_op_is_reached_by_the_importer_a_pass_or_a_function():
    """The source of every rule names the ops it emits: an op that nothing emits would be dead."""
    packages = ("graph/onnx", "functional", "plan")
    files = [file for package in packages for file in (ROOT / package).glob("*.py")]
    sources = "".join(file.read_text() for file in files)
    assert not [name for name in OPS if f'"{name}"' not in sources]


def test_every_rule_is_callable_and_named_as_onnx_does():
    import onnx.defs

    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert set(RULES) <= known, set(RULES) - known
    assert all(callable(rule) for rule in RULES.values())
    assert len(RULES) > 80
