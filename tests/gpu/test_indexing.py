"""What the ops that pick, place and order make of NaN and infinity, and more workgroups than one dimension has."""

import itertools

import numpy as np
import pytest

from vkconv.check import check_call, expect, run_call
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

pytestmark = pytest.mark.gpu
NAN, INF = np.nan, np.inf


def on_device(text, device, **arrays):
    return run_call(parse_call(text, OPS), arrays, device=device).outputs[0]


def f32(*values):
    return np.array(values, np.float32)


def test_nan_is_the_largest_to_topk_and_zeros_are_equal(device):
    x = f32(1, NAN, -INF, 0.0, -0.0, INF, NAN, 1)
    values, places = on_device("topk:x=8,k=8", device, x=x)
    assert places.tolist() == [1, 6, 5, 0, 7, 3, 4, 2]
    np.testing.assert_array_equal(values, x[places])
    assert on_device("topk:x=8,k=8,largest=0", device, x=x)[1].tolist() == [2, 3, 4, 0, 7, 5, 1, 6]


def test_nan_and_the_smallest_numbers_are_not_zero(device):
    x = f32(0, NAN, -0.0, 1e-45, -INF, 0, 2)
    places, count = on_device("nonzero:x=7", device, x=x)
    assert places.tolist() == [[1, 3, 4, 6, 0, 2, 5]] and count.tolist() == [4]


def test_what_scores_count_to_non_max_suppression(device):
    """No NaN, equal ones in order, infinities by their order; a limit itself does not count."""
    boxes = np.arange(8, dtype=np.float32).reshape(1, 8, 1) * 10 + f32(0, 0, 1, 1)
    scores = f32(1, NAN, -INF, 3, 3, INF, -0.0, 0.0).reshape(1, 1, 8)
    text = "non_max_suppression:boxes=1x8x4,scores=1x1x8,most=8"
    rows, count = on_device(text, device, boxes=boxes, scores=scores)
    assert count.tolist() == [7] and rows[:, 2].tolist() == [5, 3, 4, 0, 6, 7, 2, -1]
    assert (rows[:7, :2] == 0).all() and (rows[7] == -1).all()
    rows, count = on_device(f"{text},score=1", device, boxes=boxes, scores=scores)
    assert count.tolist() == [3] and rows[:3, 2].tolist() == [5, 3, 4]
    for nothing in (INF, NAN):
        rows, count = on_device(f"{text},score={nothing}", device, boxes=boxes, scores=scores)
        assert count.tolist() == [0] and (rows == -1).all()


def test_boxes_without_an_area_take_no_others(device):
    boxes = np.stack([f32(0, 0, 2, 2), f32(0, 0, 2, 2), f32(1, 1, 1, 1), f32(2, 2, 0, 0), f32(2, 0, 4, 2)])[None]
    scores = f32(5, 4, 3, 2, 1).reshape(1, 1, 5)
    text = "non_max_suppression:boxes=1x5x4,scores=1x1x5,most=5"
    rows, count = on_device(text, device, boxes=boxes, scores=scores)
    assert rows[: count[0], 2].tolist() == [0, 2, 4]  # touching is no overlap, and corners come in any order


def test_regions_of_no_image_or_no_number_give_nan(device):
    x = np.ones((2, 1, 4, 4), np.float32)
    rois = np.tile(f32(0, 0, 2, 2), (5, 1))
    rois[3], rois[4] = f32(0, NAN, 2, 2), f32(0, 0, 1e30, 2)
    images = np.array([1, 2, -1, 0, 0])
    (y,) = on_device("roi_align:x=2x1x4x4,rois=5x4,batch_indices=5:i64", device, x=x, rois=rois, batch_indices=images)
    assert np.isnan(y.ravel()).tolist() == [False, True, True, True, True] and y[0] == 1


@pytest.mark.parametrize("samples", ["samples=2", "samples=0", "samples=2,at_least_one=1"])
def test_regions_without_an_end_give_nan(samples, device):
    ends = [corners for corners in itertools.product((0.5, INF, -INF, NAN, 3e38), repeat=4) if corners != (0.5,) * 4]
    call = parse_call(f"roi_align:x=1x1x4x4,rois={len(ends)}x4,batch_indices={len(ends)}:i64,{samples}", OPS)
    images = np.zeros(len(ends), np.int64)
    arrays = {"x": np.ones((1, 1, 4, 4), np.float32), "rois": f32(*ends), "batch_indices": images}
    want = np.isnan(expect(call, arrays).outputs[0]).ravel()
    assert 300 < want.sum() < len(ends)
    assert np.isnan(run_call(call, arrays, device=device).outputs[0][0]).ravel().tolist() == want.tolist()


def test_a_line_longer_than_loops_of_the_driver_is_sorted(device):
    """Equal elements by index, both ways; nothing of the pairs that fill the line up."""
    x = np.random.default_rng(6).integers(-99, 99, (2, 70001)).astype(np.float32)
    x[0, [5, 70000]], x[1, 3] = INF, NAN
    for largest in (0, 1):
        values, places = on_device(f"topk:x=2x70001,k=301,largest={largest}", device, x=x)
        order = np.argsort(-x if largest else x, 1, kind="stable")[:, :301]
        order[1] = np.concatenate([[3], order[1, :-1]]) if largest else order[1]
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_hardmax_takes_the_first_nan_or_the_first_largest(device):
    x = np.stack([f32(1, 3, 3, 2), f32(1, NAN, 5, NAN), f32(-INF, -INF, -INF, -INF), f32(2, INF, INF, 0)])
    (y,) = on_device("hardmax:x=4x4", device, x=x)
    assert y.argmax(1).tolist() == [1, 1, 0, 1]
    np.testing.assert_array_equal(y.sum(1), 1)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_nan_stays_where_extremes_are_scattered(reduction, device):
    x, updates = f32(NAN, 1, 2, 3), f32(7, NAN, -7, NAN)
    (y,) = on_device(
        f"scatter_elements:x=4,indices=4:i64,updates=4,reduction={reduction}",
        device,
        x=x,
        indices=np.array([0, 1, 2, 3]),
        updates=updates,
    )
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(y, getattr(np, f"{reduction}imum")(x, updates))


def test_many_updates_of_one_element_add_up_in_order(device):
    """Every replay gives the same bytes, and the sum is that of the order of the updates."""
    rng = np.random.default_rng(0)
    updates = (rng.standard_normal(999) * 10.0 ** rng.integers(-6, 6, 999)).astype(np.float32)
    call = parse_call("scatter_nd:x=3,indices=999x1:i64,updates=999,reduction=add", OPS)
    arrays = {"x": f32(0, 0, 0), "indices": np.ones((999, 1), np.int64), "updates": updates}
    first, second = (y for (y,) in run_call(call, arrays, device=device, replays=2).outputs)
    total = np.float32(0)
    for update in updates:
        total += update
    assert first.tobytes() == second.tobytes() and first.tolist() == [0, total, 0]


def test_the_place_of_a_maximum_is_that_of_the_first_one_or_of_the_first_nan(device):
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 2], x[0, 0, 3, 0], x[0, 0, 3, 3] = 1, NAN, NAN
    (y,) = on_device("pool2d_argmax:x=1x1x4x4,k=2,s=2", device, x=x)
    assert y.ravel().tolist() == [0, 6, 12, 15]
    x[...] = -INF
    (y,) = on_device("pool2d_argmax:x=1x1x4x4,k=3,s=2,p=1", device, x=x)
    assert y.ravel().tolist() == [0, 1, 4, 5]


def test_the_maximum_of_a_window_that_is_all_padding_has_no_place(device):
    x = f32(1, 3, 2, 4).reshape(1, 1, 2, 2)
    (y,) = on_device("pool2d_argmax:x=1x1x2x2,k=2x1,d=3x1,p=2x0x2x0", device, x=x)
    assert y.ravel().tolist() == [2, 3, -1, -1, 0, 1]


@pytest.mark.parametrize("name", ["is_nan", "is_inf", "is_positive_inf", "is_negative_inf"])
def test_what_is_no_number_is_told_by_its_bits(name, device):
    x = f32(NAN, INF, -INF, 0, -0.0, 1e-45, 3.4e38, -3.4e38)
    x = np.append(x, np.array([0x7F800001, 0xFFFFFFFF, 0x7FC12345], np.uint32).view(np.float32))
    (y,) = on_device(f"{name}:x={x.size}", device, x=x)
    function = {"is_positive_inf": np.isposinf, "is_negative_inf": np.isneginf, "is_nan": np.isnan, "is_inf": np.isinf}
    np.testing.assert_array_equal(y, function[name](x))


def test_resampling_takes_nothing_of_what_has_no_weight(device):
    x = f32(INF, 1, 2, 3, NAN).reshape(1, 1, 5)
    (y,) = on_device("resize:x=1x1x5,sizes=5,axes=2,mode=cubic", device, x=x)
    np.testing.assert_array_equal(y, x)
    (y,) = on_device("grid_sample:x=1x1x1x5,grid=1x1x5x2,align=1", device, x=x[:, None], grid=places(5))
    np.testing.assert_array_equal(y.ravel(), x.ravel())


@pytest.mark.parametrize(
    ("align", "want"),
    [
        (1, [0.890137, 1.099001, 2.950222, 7.766773, 8.408377, 8.0]),
        (0, [1.0, 0.88975, 3.048252, 8.431999, 8.0, 8.0]),
    ],
)
def test_cubic_samples_clamp_pixels_at_the_border_and_not_places(device, align, want):
    """The numbers are PyTorch 2.13's."""
    x, grid = f32(1, 2, 4, 8).reshape(1, 1, 1, 4), np.zeros((1, 1, 6, 2), np.float32)
    grid[..., 0] = -1.25, -0.9, 0.1, 0.95, 1.3, 3.0
    (y,) = on_device(f"grid_sample:x=1x1x1x4,grid=1x1x6x2,mode=cubic,pad=border,align={align}", device, x=x, grid=grid)
    np.testing.assert_allclose(y.ravel(), want, rtol=2e-6)


def places(n):
    grid = np.zeros((1, 1, n, 2), np.float32)
    grid[..., 0] = np.linspace(-1, 1, n)
    return grid


def test_a_grid_of_no_places_samples_nothing(device):
    x, grid = np.ones((1, 1, 3, 3), np.float32), np.full((1, 1, 3, 2), NAN, np.float32)
    grid[0, 0, 1], grid[0, 0, 2] = INF, -3e38
    for mode in ("nearest", "linear", "cubic"):
        (y,) = on_device(f"grid_sample:x=1x1x3x3,grid=1x1x3x2,mode={mode}", device, x=x, grid=grid)
        assert y.ravel().tolist() == [0, 0, 0]
        for padding in ("border", "reflection"):  # anything inside will do
            on_device(f"grid_sample:x=1x1x3x3,grid=1x1x3x2,mode={mode},pad={padding}", device, x=x, grid=grid)


@pytest.mark.parametrize(
    "text",
    [
        "trilu:x=1024x600",
        "cumulative:x=600001x2,axis=1",
        "hardmax:x=600001x1",
        "topk:x=300001x2,k=2,axis=1",
        "nonzero:x=600001",
        "roi_align:x=1x1x1x1,rois=600001x4,batch_indices=600001:i64,samples=1",
        "one_hot:indices=200003:i64,values=2,depth=3",
        "gather_elements:x=600001x1,indices=600001x1:i64,axis=1",
        "gather_nd:x=3x2,indices=600001x1:i64",
        "scatter_elements:x=600001x1,indices=600001x1:i64,updates=600001x1,axis=1,reduction=add",
        "scatter_nd:x=3x600001,indices=2x1:i64,updates=2x600001,reduction=add",
        "reverse_sequence:x=2x300001,lengths=300001:i64",
        "pool2d_argmax:x=1x1x1x1200002,k=1x2,s=1x2",
        "resize:x=1x1x300001,sizes=1x1x600002,mode=linear,exclude=1",
        "grid_sample:x=1x1x2x2,grid=1x600001x1x2,mode=nearest",
        "affine_grid:theta=1x2x3,size=1x1x1x300001",
        "col2im:x=1x1x600001,image=600001,block=1",
        "deform_conv2d:x=1x1x1x600001,w=1x1x1x1,offset=1x2x1x600001",
        "logical_and:a=2100000:bool,b=2100000:bool",
        "is_nan:x=2100000",
        "depth_to_space:x=1x4x1x600001,block=2",
        "constant_of_shape:shape=600001,value=2.5",
    ],
)
def test_more_workgroups_than_one_dimension_has(text, device, monkeypatch):
    monkeypatch.setattr("vkconv.plan.bound.FOLD_LIMIT_BYTES", 0)
    call = parse_call(text, OPS)
    rng = np.random.default_rng(1)
    arrays = {}
    for name, spec in call.operands.items():
        if spec is not None:
            low = 0 if name in ("indices", "lengths") or spec.dtype == "bool" else -3
            high = 1 if name == "indices" else 2 if spec.dtype == "bool" else 4
            arrays[name] = rng.integers(low, high, spec.dims).astype(spec.dtype.numpy)
    route = OPS[call.op].routes[-1]
    items = {"items": 1} if "items" in (given := parameters(call, route, device)) else {}
    ran, checked = check_call(call, arrays, device=device, route=route.name, params={"local": 8} | items)
    assert given and ran.params["local"] == 8 and checked.ok, checked.problem


def parameters(call, route, device):
    from vkconv.backend.runtime import select_device

    return route.params(call, select_device(device)[1])


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("extents", ["5x7", "1x3"])
def test_places_far_out_are_mirrored_pixel_by_pixel(extents, align, device):
    call = parse_call(f"grid_sample:x=1x2x{extents},grid=1x4x7x2,mode=cubic,pad=reflection,align={align}", OPS)
    far = np.random.default_rng(3).choice(f32(NAN, INF, -INF, 0.25), (1, 4, 7, 2))
    x = np.random.default_rng(4).standard_normal(call.shape("x"), np.float32)
    _, checked = check_call(call, {"x": x, "grid": far})
    assert checked.ok, checked.problem


def test_an_infinite_weight_of_other_offsets_is_met_once(device):
    """By the channel that it belongs to, not by the zeros of channels that other offsets move."""
    call = parse_call("deform_conv2d:x=1x4x7x8,w=2x4x2x3,offset=1x24x6x6,og=2", OPS)
    rng = np.random.default_rng(5)
    arrays = {name: rng.random(call.shape(name), np.float32) / 2 + f32(0.1) for name in ("x", "w", "offset")}
    arrays["w"][0, 3, 1, 1] = INF
    ran, checked = check_call(call, arrays)
    assert checked.ok, checked.problem
    assert (ran.outputs[0][0][0, 0, :5, :5] == INF).all() and np.isfinite(ran.outputs[0][0][0, 1]).all()


def test_a_single_pixel_lies_in_the_middle_of_an_affine_grid(device):
    theta = np.float32([[[1, 2, 0.5], [4, 8, 0.25]]])
    (y,) = on_device("affine_grid:theta=1x2x3,size=1x1x1x2,align=1", device, theta=theta)
    assert y.tolist() == [[[[-0.5, -3.75], [1.5, 4.25]]]]  # as torch's affine_grid has it
