"""Rows of tensors, definitions of the normalizations against independent ones, routes on devices, and refusals."""

import itertools
import math

import numpy as np
import pytest

from vkconv.core import GraphError, LimitError
from vkconv.device import load_device, shipped_devices
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.core.requirements import ARITHMETIC, subgroup_arithmetic
from vkconv.ops.norm.row_sets import RowSet, across, along
from vkconv.plan.explain import explain_call
from vkconv.plan.limits import check_dispatch
from vkconv.route import choose, judge

RNG = np.random.default_rng(5)
SHIPPED = [load_device(name) for name in shipped_devices()]


def addresses(rows: RowSet) -> list[list[int]]:
    """What find_row and address of shaders/include/row_walk.glsl make, from the push constants."""
    count_rows, count, period, outer_step, inner_step, run, run_step = rows.push.values()
    made = []
    for row in range(count_rows):
        outer = row // period
        base = outer * outer_step + (row - outer * period) * inner_step
        if rows.walk == "dense":
            made.append([base + i for i in range(count)])
        elif rows.walk == "strided":
            made.append([base + i * run_step for i in range(count)])
        else:
            made.append([base + i // run * run_step + i % run for i in range(count)])
    return made


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (1, 3, 4, 2), (2, 1, 1, 5), (3, 2, 1), (4, 4, 4)])
def test_rows_along_axes_hold_each_element_once_and_in_order(shape):
    index = np.arange(math.prod(shape)).reshape(shape)
    for first, last in itertools.combinations_with_replacement(range(len(shape)), 2):
        moved = np.moveaxis(index, range(first, last + 1), range(len(shape) - (last + 1 - first), len(shape)))
        want = moved.reshape(-1, math.prod(shape[first : last + 1]))
        assert addresses(along(shape, first, last)) == want.tolist()


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (2, 3, 4), (1, 3, 4), (4, 2, 3, 5), (3, 1, 4), (5, 1)])
def test_rows_across_images_hold_each_channel(shape):
    index = np.arange(math.prod(shape)).reshape(shape)
    assert addresses(across(shape, shape[1])) == np.moveaxis(index, 1, 0).reshape(shape[1], -1).tolist()


@pytest.mark.parametrize(
    ("rows", "walk", "vec4"),
    [
        (along((8, 1000), 1, 1), "dense", True),
        (along((8, 1001), 1, 1), "dense", False),
        (along((1, 1002), 1, 1), "dense", False),
        (along((2, 8, 4), 1, 1), "strided", False),
        (across((2, 3, 8), 3), "runs", True),
        (across((4, 3, 5), 3), "runs", False),
        (across((1, 3, 8), 3), "dense", True),
        (across((1, 3, 6), 3), "dense", False),
        (across((4, 3), 3), "strided", False),
    ],
)
def test_how_rows_are_walked_and_whether_by_vec4(rows, walk, vec4):
    assert (rows.walk, rows.vec4) == (walk, vec4)
    if vec4:
        made = np.array(addresses(rows)).reshape(-1, 4)
        assert (made[:, 0] % 4 == 0).all() and (np.diff(made) == 1).all()


def reference(text, **arrays):
    call = parse_call(text, OPS)
    return OPS[call.op].reference(call, dict.fromkeys(call.operands) | arrays)


def test_statistics_of_layer_norm_are_those_of_the_row():
    x = RNG.normal(3, 2, (4, 50))
    y, mean, inv_std = reference("layer_norm:x=4x50,stats=1,eps=0.5", x=x)
    assert np.allclose(mean, x.mean(1, keepdims=True)) and np.allclose(inv_std, 1 / np.sqrt(x.var(1) + 0.5)[:, None])
    assert np.allclose(y, (x - mean) * inv_std)


def test_instance_norm_is_group_norm_of_single_channels_and_layer_norm_that_of_all():
    x, scale, bias = RNG.normal(size=(2, 6, 5)), RNG.normal(size=6), RNG.normal(size=6)
    one = reference("instance_norm:x=2x6x5,scale=6,bias=6", x=x, scale=scale, bias=bias)[0]
    assert np.allclose(one, reference("group_norm:x=2x6x5,scale=6,bias=6,g=6", x=x, scale=scale, bias=bias)[0])
    whole = reference("group_norm:x=2x6x5,g=1", x=x)[0]
    assert np.allclose(whole, reference("layer_norm:x=2x6x5,axis=1", x=x)[0])
    by_group = reference("group_norm:x=2x6x5,scale=2,bias=2,g=2", x=x, scale=scale[:2], bias=bias[:2])[0]
    repeated = {"scale": np.repeat(scale[:2], 3), "bias": np.repeat(bias[:2], 3)}
    assert np.allclose(by_group, reference("group_norm:x=2x6x5,scale=6,bias=6,g=2", x=x, **repeated)[0])


def test_rms_norm_leaves_the_mean():
    x = RNG.normal(2, 1, (3, 40))
    y = reference("rms_norm:x=3x40,eps=0", x=x)[0]
    assert np.allclose((y**2).mean(1), 1) and np.allclose(y / x, (y / x)[:, :1])


def test_training_moves_the_statistics_towards_the_batch():
    x, v = RNG.normal(1, 3, (4, 2, 5)), RNG.normal(size=(4, 2)) ** 2
    given = {"x": x, "scale": v[0], "bias": v[1], "mean": v[2], "var": v[3]}
    text = "batch_norm_training:x=4x2x5,scale=2,bias=2,mean=2,var=2,momentum=0.75"
    y, mean, var = reference(text, **given)
    batch_mean, batch_var = x.mean((0, 2)), x.var((0, 2))
    assert np.allclose(mean, 0.75 * v[2] + 0.25 * batch_mean) and np.allclose(var, 0.75 * v[3] + 0.25 * batch_var)
    inference = reference(
        "batch_norm:x=4x2x5,scale=2,bias=2,mean=2,var=2", **{**given, "mean": batch_mean, "var": batch_var}
    )
    assert np.allclose(y, inference[0])


def test_each_device_takes_the_route_its_kind_is_good_at():
    h200, lavapipe = load_device("h200"), load_device("lavapipe")
    for text, on_h200, on_lavapipe in (
        ("softmax:x=8192x1000", "one_pass lanes=64", "one_pass lanes=8"),
        ("softmax:x=8192x1025", "one_pass lanes=128", "subgroup rows=4"),
        ("softmax:x=40x1000", "one_pass lanes=64", "subgroup rows=4"),
        ("softmax:x=8192x8", "one_lane local=64", "one_lane local=64"),
        ("softmax:x=8192x17", "clusters lanes=8", "one_lane local=64"),
        ("softmax:x=8192x33", "clusters lanes=16", "one_lane local=64"),
        ("softmax:x=8x1000x16,axis=1", "one_pass lanes=64", "serial local=8"),
        ("softmax:x=100x33", "clusters lanes=16", "serial local=8"),
        ("softmax:x=1x67x512x1024,axis=1", "serial local=64", "serial local=64"),
        ("softmax:x=2048x50257", "workgroup local=256", "subgroup rows=4"),
        ("softmax:x=16x262144", "split_rows parts=64", "subgroup rows=1"),
        ("softmax:x=1x19x512x1024,axis=1", "one_lane local=64", "one_lane local=64"),
        ("layer_norm:x=8192x1024,scale=1024,bias=1024", "one_pass lanes=64", "subgroup rows=4"),
        ("instance_norm:x=8x64x112x112", "one_pass lanes=1024", "subgroup rows=4"),
        ("batch_norm_training:x=32x64x56x56,scale=64,bias=64,mean=64,var=64", "split_rows parts=16", "subgroup rows=4"),
    ):
        call = parse_call(text, OPS)
        for device, route in ((h200, on_h200), (lavapipe, on_lavapipe)):
            assert str(choose(OPS[call.op].routes, call, device)).startswith(route), f"{text} on {device.name}"


def test_long_rows_stay_within_the_loops_that_a_driver_runs_to_their_end():
    lavapipe = load_device("lavapipe")
    assert lavapipe.max_loop_iterations
    for text in ("softmax:x=3x1000003", "layer_norm:x=2x4194304", "softmax:x=1x16777217,log=1"):
        call = parse_call(text, OPS)
        for route in OPS[call.op].routes:
            if judge(route, call, lavapipe).allowed:
                for name, values in route.params(call, lavapipe).items():
                    for value in values:
                        for step in route.build(call, lavapipe, {name: value}).steps:
                            assert step.loop_iterations <= lavapipe.max_loop_iterations
        assert "loops" in judge(OPS[call.op].routes[-1], call, lavapipe).refused_by
        assert choose(OPS[call.op].routes, call, lavapipe).route.name != "serial"


@pytest.mark.parametrize("device", SHIPPED, ids=lambda device: device.name)
@pytest.mark.long
def test_every_value_of_a_parameter_is_within_the_limits(device):
    for text in ("softmax:x=70000x260", "layer_norm:x=3x40000,scale=40000,stats=1", "rms_norm:x=5x1,scale=1"):
        call = parse_call(text, OPS)
        for route in OPS[call.op].routes:
            if not judge(route, call, device).allowed:
                continue
            legal = route.params(call, device)
            for values in itertools.product(*legal.values()):
                for step in route.build(call, device, dict(zip(legal, values, strict=True))).steps:
                    # What no device with 4 buffers can be given is refused, and test_registry.py has it.
                    if len(step.binds) > 4 == device.limit("maxPerStageDescriptorStorageBuffers"):
                        continue
                    check_dispatch(text, step, device)
                    if subgroup_arithmetic(device):
                        assert step.local[0] % device.subgroup_size == 0 or route.name in ("serial", "one_lane")


def test_subgroups_without_arithmetic_leave_the_tree():
    device = load_device("mali-g715")
    facts = {**device.facts, "properties": {**device.facts["properties"]}}
    facts["properties"].pop("VkPhysicalDeviceSubgroupProperties")
    bare, call = type(device)(facts), parse_call("softmax:x=8192x1000", OPS)
    assert not ARITHMETIC.test(call, bare) and "no operations" in ARITHMETIC.actual(call, bare)
    choice = choose(OPS["softmax"].routes, call, bare)
    assert (choice.route.name, choice.params["tree"]) == ("one_pass", 1)
    (step,) = choice.route.build(call, bare, choice.params).steps
    assert ("REDUCTION_TREE", "") in step.shader.defines


def test_explain_says_why_each_route_was_refused():
    text = str(explain_call(parse_call("softmax:x=8192x7", OPS), load_device("h200")))
    assert "rows shorter than a workgroup shares, and as long as some lanes of a subgroup do on this device" in text
    assert "8192 rows of 7, shared from 9 on" in text
    assert "rows as long as lanes share on such devices" in text and "7 elements, at least 64" in text
    assert "each lane holds 2 x 4 values, a whole row" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer_norm:x=2x3,bias=2", "bias is 2; from axis 1 on, x is 3"),
        ("layer_norm:x=2x3,axis=2", r"axis 2 is outside \[-2, 1\]"),
        ("softmax:x=scalar", "axis -1 of a scalar, which has rank 0 and no axis; reshape it"),
        ("rms_norm:x=2x3,scale=3:f16", "element types differ"),
        ("rms_norm:x=2x3:i32", "x is i32; it takes a float type"),
        ("instance_norm:x=3", "it needs n and c dimensions"),
        ("instance_norm:x=2x3x4,scale=4", "scale is 4; it is 3, one for each channel of x 2x3x4"),
        ("group_norm:x=2x6x4,g=4", "6 channels do not divide into 4 groups"),
        ("group_norm:x=2x6x4,g=0", "6 channels do not divide into 0 groups"),
        ("group_norm:x=2x6x4,g=2,scale=3", "scale is 3; it is 6, one for each channel or 2, one for each group of x"),
        ("group_norm:x=2x6x4,g=2,scale=2,bias=6", "scale 2 and bias 6 differ in shape"),
        ("group_norm:x=2x6x4,g=2,eps=-1", "eps is -1.0; it must be finite"),
        ("batch_norm_training:x=2x3,scale=3,bias=3,mean=3", "needs the operand 'var'"),
        ("batch_norm_training:x=2x3,scale=3,bias=3,mean=3,var=3,momentum=1.5", "momentum is 1.5; it is from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(text, message):
    with pytest.raises((GraphError, LimitError), match=message):
        parse_call(text, OPS)
