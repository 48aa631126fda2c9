"""Bias and activation of convolutions without a device: prelu's reference, its errors, where its slope lies."""

import numpy as np
import pytest
from graph_kit import made_up_device
from ops_device import device

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call
from vkconv.ops.kernels.strided import STRIDED_COPY
from vkconv.route import judge

# Calls of three channels out (in, for the gradient), and what has to follow.
CALLS = {
    "conv2d": "conv2d:x=1x2x7x8,w=3x2x3x3,p=1",
    "conv2d 1x1": "conv2d:x=1x2x7x8,w=3x2x1x1",
    "depthwise": "conv2d:x=1x3x7x8,w=3x1x3x3,g=3,p=1",
    "conv_transpose2d": "conv_transpose2d:x=1x2x7x8,w=2x3x3x3,s=2,p=1",
    "conv2d_backward_data": "conv2d_backward_data:dy=1x2x7x8,w=2x3x3x3,x_shape=7x8,p=1",
    "conv2d_backward_data 1x1": "conv2d_backward_data:dy=1x2x7x8,w=2x3x1x1,x_shape=14x15,s=2",
}
KINDS = ["CPU", "DISCRETE_GPU"]


def integers(*shape, seed=3):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_prelu_multiplies_what_is_negative_by_the_slope_of_its_channel(text):
    plain = parse_call(f"{text},b=3", OPS)
    call = parse_call(f"{text},b=3,slope=3,act=prelu", OPS)
    assert parse_call(format_call(call, OPS), OPS) == call
    arrays = {name: integers(*spec.dims) for name, spec in plain.operands.items() if spec is not None}
    slope = np.array([0.25, 0.0, -3.0])
    (sums,) = OPS[call.op].reference(plain, arrays)
    (y,) = OPS[call.op].reference(call, {**arrays, "slope": slope})
    assert (sums < 0).any(axis=(0, 2, 3)).all()
    for c in range(3):
        np.testing.assert_array_equal(y[:, c], np.where(sums[:, c] < 0, slope[c] * sums[:, c], sums[:, c]))


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("act=prelu", "act is prelu, which needs a slope: one value for each of the 3 (out|in)put channels"),
        ("slope=3", "there is a slope of 3, but act is 'none'; only prelu takes one"),
        ("slope=3,act=leaky_relu", "there is a slope of 3, but act is 'leaky_relu'; only prelu takes one"),
        ("slope=4,act=prelu", "the slope is 4; with 3 (out|in)put channels it is 3"),
        ("slope=3x1x1,act=prelu", "the slope is 3x1x1; with 3 (out|in)put channels it is 3"),
        ("slope=1,act=prelu", "the slope is 1; with 3 (out|in)put channels it is 3"),
        ("slope=3:f16,act=prelu", "operands of one float dtype, not .*3:f16"),
        ("slope=3,act=preluu", "there is no activation 'preluu'"),
    ],
)
def test_prelu_and_its_slope_come_together(text, more, message):
    with pytest.raises(GraphError, match=message):
        parse_call(f"{text},{more}", OPS)


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_only_bias_and_slope_together_are_packed_and_no_launch_binds_a_fifth_buffer(text, kind):
    for more, reads, packs in (("", (), 0), (",b=3", ("b",), 0), (",slope=3", ("slope",), 0), (",b=3,slope=3", (), 2)):
        call = parse_call(f"{text}{more}{',act=prelu' if 'slope' in more else ''}", OPS)
        for route in OPS[call.op].routes:
            if not judge(route, call, device(kind)).allowed:
                continue
            program = route.build(call, device(kind))
            # What an inner call packs has its name in front.
            bound = {bind.buffer.rsplit(".")[-1] for step in program.steps for bind in step.binds}
            assert bound & {"b", "slope", "per_channel"} == (set(reads) or ({"per_channel"} if packs else set()))
            assert [n for name, n in program.packed.items() if name.endswith("per_channel")] == [24] * bool(packs)
            made = [d for d in program.prepack if d.binds[-1].buffer.endswith("per_channel")]
            assert len(made) == packs and all(d.shader == STRIDED_COPY and d.shader in route.shaders for d in made)
            assert max(len(d.binds) for d in (*program.steps, *program.prepack)) <= 4
            assert max(len(d.push_bytes) for d in (*program.steps, *program.prepack)) <= 128


@pytest.mark.parametrize("text", CALLS.values(), ids=CALLS)
def test_a_scale_and_shift_come_behind_the_activation(text):
    plain = parse_call(f"{text},act=relu", OPS)
    call = parse_call(f"{text},act=relu,out_scale=-2,out_shift=0.5", OPS)
    assert parse_call(format_call(call, OPS), OPS) == call
    arrays = {name: integers(*spec.dims) for name, spec in plain.operands.items() if spec is not None}
    (before,) = OPS[call.op].reference(plain, arrays)
    (y,) = OPS[call.op].reference(call, arrays)
    np.testing.assert_array_equal(y, before * -2 + 0.5)


@pytest.mark.parametrize("text", [*CALLS.values(), "matmul:a=2x3,b=3x4"])
def test_only_an_activation_without_parameters_takes_a_scale_or_shift(text):
    message = r"act is 'clip', which has parameters \(lo, hi\), and out_scale is 1.0, out_shift 3.0"
    with pytest.raises(GraphError, match=message):
        parse_call(f"{text},act=clip,act_a=-1,act_b=1,out_shift=3", OPS)


@pytest.mark.parametrize("name", ["lavapipe", "h200"])
@pytest.mark.parametrize(
    "text", ["conv2d:x=2x5x9x11,w=3x5x3x3,p=1,residual=2x3x9x11", "matmul:a=7x5,b=5x3,residual=7x3"]
)
def test_one_launch_binds_the_residual_in_a_variant_that_the_route_declares(text, name):
    device = load_device(name)
    call = parse_call(text, OPS)
    for route in OPS[call.op].routes:
        if judge(route, call, device).allowed:
            steps = route.build(call, device).steps
            adding = [step for step in steps if step.binds[-1].buffer == "residual"]
            assert adding == [step for step in steps if any(bind.buffer == "y" for bind in step.binds)]
            assert all([b.buffer for b in d.binds][-2] == "y" and len(d.binds) <= 5 for d in adding)
            assert all(d.shader in route.shaders and ("RESIDUAL", "") in d.shader.defines for d in adding)


def test_a_residual_has_the_shape_of_the_result():
    with pytest.raises(GraphError, match="the residual is 2x3x9x10:f32, and the result that it is added to 2x3x9x11"):
        parse_call("conv2d:x=2x5x9x11,w=3x5x3x3,p=1,residual=2x3x9x10", OPS)
    with pytest.raises(GraphError, match="the residual is 7x3:f16"):
        parse_call("matmul:a=7x5,b=5x3,residual=7x3:f16", OPS)


@pytest.mark.parametrize(
    "text", ["conv2d:x=1x3x4x4,w=3x3x3x3,p=1,b=3,slope=3,residual=1x3x4x4,act=prelu", "matmul:a=7x5,b=5x3,residual=7x3"]
)
def test_a_device_of_four_buffers_adds_a_residual_in_a_launch_more(text):
    call, four = parse_call(text, OPS), made_up_device("lavapipe", maxPerStageDescriptorStorageBuffers=4)
    for route in OPS[call.op].routes:
        if judge(route, call, four).allowed:
            program = route.build(call, four)
            assert max(len(step.binds) for step in program.steps) <= 4
            assert (
                program.steps[-1].shader in route.shaders and program.scratch["unfinished"] == call.outputs["y"].nbytes
            )
