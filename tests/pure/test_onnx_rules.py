"""Import rules that make several nodes of one, or need what earlier opsets meant."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_kit import evaluate
from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

from vkconv.core import Array, DType, GraphError, ModelError, UnsupportedError  # noqa: E402
from vkconv.graph import Graph, TensorSpec  # noqa: E402
from vkconv.graph.onnx import load_onnx_proto  # noqa: E402
from vkconv.onnx_export import to_onnx  # noqa: E402
from vkconv.ops import OPS  # noqa: E402
from vkconv.plan.bound import bind, value_inputs, with_values  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)


def imported(
    node: Any | list[Any], outputs: tuple[str, ...] = ("y",), opset: int = 18, **arrays: Any
) -> tuple[Graph, dict[str, Array]]:
    """The graph of a node (or several) whose inputs are the arrays; those named ``c_...`` are constants."""
    constants = {name: np.asarray(a) for name, a in arrays.items() if name.startswith("c_")}
    inputs = {name: np.asarray(a) for name, a in arrays.items() if name not in constants}
    graph = helper.make_graph(
        node if isinstance(node, list) else [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return load_onnx_proto(model), inputs


def computed(node: Any | list[Any], outputs: tuple[str, ...] = ("y",), opset: int = 18, **arrays: Any) -> list[Array]:
    """What the references of the imported graph give."""
    graph, inputs = imported(node, outputs, opset, **arrays)
    steering = value_inputs(graph, OPS)
    graph = with_values(graph, {name: inputs.pop(name) for name in steering})
    return evaluate(bind(graph, OPS), inputs)


def refused(node: Any | list[Any], outputs: tuple[str, ...] = ("y",), opset: int = 18, **arrays: Any) -> str:
    with pytest.raises(UnsupportedError) as error:
        imported(node, outputs, opset, **arrays)
    return str(error.value)


@pytest.mark.parametrize(
    ("shape", "attrs", "aligned"),
    [
        ((4, 5), {"broadcast": 1, "axis": 1}, (4, 5, 1)),
        ((4,), {"broadcast": 1, "axis": 1}, (4, 1, 1)),
        ((2,), {"broadcast": 1, "axis": 0}, (2, 1, 1, 1)),
        ((5, 6), {"broadcast": 1}, (5, 6)),
        ((5, 6), {"broadcast": 1, "axis": 2}, (5, 6)),
        ((2, 4, 5, 6), {}, (2, 4, 5, 6)),
    ],
)
@pytest.mark.parametrize(("op", "function"), [("Add", np.add), ("Mul", np.multiply), ("Pow", np.power)])
def test_operands_of_opset_6_may_begin_at_an_axis(
    op: str, function: Any, shape: tuple[int, ...], attrs: dict[str, int], aligned: tuple[int, ...]
) -> None:
    b = np.random.default_rng(1).uniform(1, 2, shape).astype(np.float32)
    x = np.abs(X)
    (y,) = computed(helper.make_node(op, ["x", "b"], ["y"], **attrs), opset=6, x=x, b=b)
    np.testing.assert_allclose(y, function(x.astype(np.float64), b.reshape(aligned)), rtol=1e-6)


def test_a_slope_of_opset_6_lies_along_the_channels() -> None:
    slope = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    (y,) = computed(helper.make_node("PRelu", ["x", "c_s"], ["y"]), opset=6, x=X, c_s=slope)
    np.testing.assert_allclose(y, np.where(X < 0, X * slope[:, None, None], X), rtol=1e-6)


def test_what_onnx_has_not_changed_since_is_as_old_as_it_likes() -> None:
    flags = np.array([True, False])
    assert computed(helper.make_node("Not", ["x"], ["y"]), opset=1, x=flags)[0].tolist() == [False, True]
    assert "version 5 is too old, the oldest is 6" in refused(helper.make_node("Relu", ["x"], ["y"]), opset=5, x=X)


@pytest.mark.parametrize(("version", "training", "ratio"), [(13, False, 0.5), (13, True, 0.0), (22, False, 0.9)])
def test_dropout_that_drops_nothing_has_a_mask_of_ones(version: int, training: bool, ratio: float) -> None:
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y", "mask"])
    y, mask = computed(node, ("y", "mask"), version, x=X, r=np.float32(ratio), t=np.array(training))
    assert mask.dtype == bool and mask.all() and mask.shape == X.shape
    np.testing.assert_array_equal(y, X)


def test_dropout_that_would_drop_is_refused_when_it_is_known() -> None:
    node = helper.make_node("Dropout", ["x", "", "t"], ["y"])
    with pytest.raises(GraphError, match=r"ratio of 0\.5 drops elements at random"):
        computed(node, x=X, t=np.array(True))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 2, -7])
def test_losses_ignore_what_they_are_told_to(reduction: str, weighted: bool, ignore: int | None) -> None:
    target = np.random.default_rng(2).integers(0, 4, (2, 5, 6))
    if ignore is not None:
        target[0, 1] = ignore
    weights = np.array([0.5, 1, 2, 3], np.float32)
    used = weights[np.clip(target, 0, 3)] if weighted else np.ones(target.shape)
    used = np.where(target == ignore, 0, used)
    picked = np.take_along_axis(X, np.clip(target, 0, 3)[:, None], 1)[:, 0]
    want = -picked.astype(np.float64) * used
    want = {"none": want, "sum": want.sum(), "mean": want.sum() / used.sum()}[reduction]
    attrs = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    node = helper.make_node("NegativeLogLikelihoodLoss", ["x", "t", *(["w"] if weighted else [])], ["y"], **attrs)
    (y,) = computed(node, x=X, t=target, **({"w": weights} if weighted else {}))
    assert y.shape == np.shape(want)
    np.testing.assert_allclose(y, want, rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_volume_is_convolved_plane_by_plane(groups: int) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 4, 6, 5, 7)), rng.standard_normal((6, 4 // groups, 2, 3, 2))
    strides, pads, dilations = (2, 1, 2), (1, 0, 1, 0, 1, 2), (2, 1, 1)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": groups}
    node = helper.make_node("Conv", ["x", "c_w", "c_b"], ["y"], **attrs)
    bias = np.arange(6, dtype=np.float32)
    (y,) = computed(node, x=x.astype(np.float32), c_w=w.astype(np.float32), c_b=bias)
    x, w = x.astype(np.float32).astype(np.float64), w.astype(np.float32).astype(np.float64)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:3], pads[3:], strict=True)])
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3, 4))
    seen = seen[:, :, :: strides[0], :: strides[1], :: strides[2], :: dilations[0], :: dilations[1], :: dilations[2]]
    n, _, *out = seen.shape[:5]
    grouped = seen.reshape(n, groups, 4 // groups, *seen.shape[2:])
    want = np.einsum("ngcdhwijk,gmcijk->ngmdhw", grouped, w.reshape(groups, 6 // groups, *w.shape[1:]))
    np.testing.assert_allclose(y, want.reshape(n, 6, *out) + bias[:, None, None, None], rtol=1e-9)


def same_pads(x: Array, spans: list[int], strides: tuple[int, ...], upper: bool) -> list[tuple[int, int]]:
    """Pads of each spatial axis so that there is a window at every stride."""
    totals = [max(0, (-(-n // s) - 1) * s + span - n) for n, span, s in zip(x.shape[2:], spans, strides, strict=True)]
    halves = [(total // 2, total - total // 2) for total in totals]
    return halves if upper else [(more, less) for less, more in halves]


@pytest.mark.parametrize("dilations", [(1, 1, 1), (2, 1, 2)])
@pytest.mark.parametrize("strides", [(1, 1, 1), (2, 3, 1), (3, 1, 2), (4, 2, 2)])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_a_volume_is_padded_so_that_there_is_a_window_at_every_stride(
    auto_pad: str, strides: tuple[int, ...], dilations: tuple[int, ...]
) -> None:
    x = np.random.default_rng(5).standard_normal((1, 2, 6, 5, 7)).astype(np.float32)
    w = np.random.default_rng(6).standard_normal((3, 2, 2, 3, 2)).astype(np.float32)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    pads = same_pads(x, spans, strides, auto_pad == "SAME_UPPER")
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations}
    flat = [pad[end] for end in (0, 1) for pad in pads]
    explicit = helper.make_node("Conv", ["x", "c_w"], ["y"], pads=flat, **attrs)
    node = helper.make_node("Conv", ["x", "c_w"], ["y"], auto_pad=auto_pad, **attrs)
    (want,), (y,) = computed(explicit, x=x, c_w=w), computed(node, x=x, c_w=w)
    assert y.shape[2:] == tuple(-(-n // s) for n, s in zip(x.shape[2:], strides, strict=True))
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("constant", [False, True])
def test_a_volume_is_transposed_plane_by_plane(groups: int, constant: bool) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, 4, 3, 2, 4)).astype(np.float32)
    w = rng.standard_normal((4, 3, 2, 3, 2)).astype(np.float32)
    bias = np.arange(3 * groups, dtype=np.float32)
    strides, pads, dilations, extra = (3, 1, 2), (1, 0, 1, 0, 1, 0), (2, 1, 2), (2, 0, 1)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": groups, "output_padding": extra}
    name = "c_w" if constant else "w"
    (y,) = computed(helper.make_node("ConvTranspose", ["x", name, "b"], ["y"], **attrs), x=x, b=bias, **{name: w})
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    full = [(n - 1) * s + span + e for n, s, span, e in zip(x.shape[2:], strides, spans, extra, strict=True)]
    want = np.zeros((2, groups, 3, *full))
    parts = w.reshape(groups, 4 // groups, *w.shape[1:]).astype(np.float64)
    images = x.reshape(2, groups, 4 // groups, *x.shape[2:]).astype(np.float64)
    for i, j, k in np.ndindex(*w.shape[2:]):
        taps = zip((i, j, k), dilations, x.shape[2:], strides, strict=True)
        at = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in taps]
        want[(..., *at)] += np.einsum("ngcdhw,gcm->ngmdhw", images, parts[..., i, j, k])
    want = want.reshape(2, 3 * groups, *full) + bias[:, None, None, None]
    cropped = want[(..., *(slice(b, n - e) for b, e, n in zip(pads[:3], pads[3:], full, strict=True)))]
    assert y.shape == cropped.shape
    np.testing.assert_allclose(y, cropped, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("axes", "want"), [((), None), ((-1,), (3,)), ((0, -2), (0, 2))])
def test_axes_that_turn_out_to_be_none_reduce_nothing(
    axes: tuple[int, ...], want: tuple[int, ...] | None, keepdims: int
) -> None:
    node = helper.make_node("ReduceL2", ["x", "axes"], ["y"], keepdims=keepdims, noop_with_empty_axes=1)
    (y,) = computed(node, x=X, axes=np.array(axes, np.int64))
    square = X.astype(np.float64) ** 2
    np.testing.assert_allclose(y, np.sqrt(square if want is None else square.sum(want, keepdims=bool(keepdims))))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [None, (5, 4, 8), (6, 3, 9), (8, 5, 7)])
def test_a_volume_is_transposed_to_a_shape(auto_pad: str, shape: tuple[int, ...] | None) -> None:
    """By ONNX's formula: what is too much is cut off, half of it on each side; what is missing is added behind."""
    x = np.random.default_rng(7).standard_normal((2, 2, 3, 3, 4)).astype(np.float32)
    w = np.random.default_rng(8).standard_normal((2, 3, 2, 1, 3)).astype(np.float32)
    strides, extra = (3, 1, 2), (1, 0, 0)
    target = shape or tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
    if shape is None and auto_pad == "NOTSET":
        target = (9, 3, 9)
    attrs: dict[str, Any] = {"strides": strides, "output_padding": extra, "auto_pad": auto_pad}
    begin, end, more = [], [], list(extra)
    for i in range(3):
        total = (x.shape[2 + i] - 1) * strides[i] + w.shape[2 + i] + extra[i] - target[i]
        more[i] -= min(total, 0)
        less = max(total, 0) // 2
        begin.append(less if auto_pad == "SAME_UPPER" else max(total, 0) - less)
        end.append(max(total, 0) - begin[i])
    if any(m >= s for m, s in zip(more, strides, strict=True)):
        node = helper.make_node("ConvTranspose", ["x", "c_w"], ["y"], output_shape=target, **attrs)
        with pytest.raises(GraphError, match="the input reaches only"):
            computed(node, x=x, c_w=w)
        return
    node = helper.make_node("ConvTranspose", ["x", "c_w"], ["y"], **attrs, **({"output_shape": shape} if shape else {}))
    explicit = helper.make_node(
        "ConvTranspose", ["x", "c_w"], ["y"], strides=strides, output_padding=more, pads=[*begin, *end]
    )
    (want,), (y,) = computed(explicit, x=x, c_w=w), computed(node, x=x, c_w=w)
    assert y.shape[2:] == target
    np.testing.assert_array_equal(y, want)


def test_a_kernel_that_is_deeper_than_a_volume_is_refused() -> None:
    node = helper.make_node("Conv", ["x", "c_w"], ["y"], pads=[1, 0, 0, 0, 0, 0], dilations=[3, 1, 1])
    x, w = np.ones((1, 1, 2, 3, 3), np.float32), np.ones((1, 1, 2, 1, 1), np.float32)
    assert "its kernel reaches over 4 planes, and with the pads there are 3" in refused(node, x=x, c_w=w)


def test_sequences_are_gone_from_the_graph() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "d", "c_front"], ["t"]),
        helper.make_node("SequenceErase", ["t", "c_last"], ["u"]),
        helper.make_node("ConcatFromSequence", ["u"], ["y"], axis=0),
        helper.make_node("SequenceLength", ["u"], ["n"]),
    ]
    a, b, d = (np.full((1, 2), v, np.float32) for v in (1, 2, 3))
    y, n = computed(nodes, ("y", "n"), a=a, b=b, d=d, c_front=np.array(0), c_last=np.array(-1))
    assert y.tolist() == [[3, 3], [1, 1]] and n == 2 and n.dtype == np.int64


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], "a sequence is an output of the model"),
        (
            [
                helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
                helper.make_node("SequenceAt", ["s", "p"], ["y"]),
            ],
            "its position is computed at run time",
        ),
        (
            [
                helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
                helper.make_node("SequenceAt", ["s", "c_2"], ["y"]),
            ],
            "its position is 2, and the sequence has 2 items",
        ),
        (
            [
                helper.make_node("SequenceEmpty", [], ["s"]),
                helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
            ],
            "the sequence is empty",
        ),
        (
            [
                helper.make_node("SplitToSequence", ["x"], ["s"]),
                helper.make_node("SequenceErase", ["s"], ["t"]),
                helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
            ],
            "the parts of SplitToSequence",
        ),
        (
            [
                helper.make_node("SplitToSequence", ["x", "c_2"], ["s"]),
                helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=1),
            ],
            "along another axis than that of SplitToSequence",
        ),
        (
            [
                helper.make_node("SplitToSequence", ["x"], ["s"], keepdims=0),
                helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=3),
            ],
            "its axis is 3, and what it makes has rank 3",
        ),
    ],
)
def test_sequences_that_are_not_known_are_refused(nodes: list[Any], reason: str) -> None:
    assert reason in refused(nodes, x=X, p=np.array(0), c_2=np.array(2))


@pytest.mark.parametrize("cut", [0, 1, -1])
@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_parts_of_one_each_are_joined(keepdims: int, new_axis: int, cut: int) -> None:
    """Along every axis: those that they were cut along, others, and new ones."""
    split = helper.make_node("SplitToSequence", ["x"], ["s"], axis=cut, keepdims=keepdims)
    parts = [part if keepdims else np.squeeze(part, cut) for part in np.split(X, X.shape[cut], cut)]
    for axis in range(-(parts[0].ndim + new_axis), parts[0].ndim + new_axis):
        join = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=axis, new_axis=new_axis)
        (y,) = computed([split, join], x=X)
        np.testing.assert_array_equal(y, np.stack(parts, axis) if new_axis else np.concatenate(parts, axis))


def test_parts_of_given_sizes_are_joined_where_they_were_cut() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["s"], axis=-1),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=3),
    ]
    (y,) = computed(nodes, x=X, sizes=np.array([1, 5]))
    np.testing.assert_array_equal(y, X)


def test_a_slope_may_be_of_integers() -> None:
    x, slope = np.array([[-3, 4, -(1 << 40)], [5, -6, 0]]), np.array([2, 3, 1])
    (y,) = computed(helper.make_node("PRelu", ["x", "slope"], ["y"]), x=x, slope=slope)
    assert y.dtype == np.int64 and y.tolist() == np.where(x < 0, x * slope, x).tolist()


@pytest.mark.parametrize("mode", ["floor", "round_prefer_floor"])
@pytest.mark.parametrize("opset", [11, 12])
def test_resize_samples_half_a_pixel_behind_as_tensorflow_did(opset: int, mode: str) -> None:
    """The source is floor((o + 0.5) / scale), or that rounded half down."""
    x = np.arange(7, dtype=np.float32).reshape(1, 1, 7)
    for size in range(1, 20):
        node = helper.make_node(
            "Resize",
            ["x", "c_none", "c_none", "c_size"],
            ["y"],
            coordinate_transformation_mode="tf_half_pixel_for_nn",
            nearest_mode=mode,
        )
        (y,) = computed(node, opset=opset, x=x, c_none=np.zeros(0, np.float32), c_size=np.array([1, 1, size]))
        doubled = (2 * np.arange(size) + 1) * 7  # of 2 size parts of a pixel
        want = doubled // (2 * size) if mode == "floor" else -(-(doubled - size) // (2 * size))
        assert y.ravel().tolist() == np.minimum(want, 6).tolist()


def test_resize_takes_its_region_and_sizes_from_inputs() -> None:
    node = helper.make_node(
        "Resize", ["x", "roi", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode="tf_crop_and_resize"
    )
    roi = np.array([0, 0, 0.25, 0.5, 1, 1, 0.75, 0.5], np.float32)
    (y,) = computed(node, x=X, roi=roi, sizes=np.array([2, 4, 3, 1]))
    assert y.shape == (2, 4, 3, 1)
    np.testing.assert_allclose(y[..., 0], X[:, :, 1:4, 2:4].mean(-1), rtol=1e-6)


@pytest.mark.parametrize(
    ("scales", "want"),
    [
        ((0.6, 0.6), [1, 3]),
        ((0.7, 0.7), [1, 3]),
        ((0.5, 1.5), [1, 1, 2, 3, 3, 4]),
        ((2.0, 0.6), [1, 3, 1, 3, 5, 7, 5, 7]),
    ],
)
def test_resize_10_rounds_up_along_axes_that_become_shorter(scales: tuple[float, float], want: list[int]) -> None:
    """The values are ONNX Runtime's, the first also those of ONNX's own test of opset 10."""
    x, c_s = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4), np.array([1, 1, *scales], np.float32)
    node = helper.make_node("Resize", ["x", "c_s"], ["y"], mode="nearest")
    (y,) = computed(node, opset=10, x=x, c_s=c_s)
    assert y.ravel().tolist() == want
    graph, _ = imported(node, opset=10, x=x, c_s=c_s)
    if min(scales) < 1 < max(scales):
        with pytest.raises(UnsupportedError, match="as Resize did in opset 10"):
            to_onnx(graph)
    else:
        assert evaluate(bind(load_onnx_proto(to_onnx(graph)), OPS), {"x": x})[0].ravel().tolist() == want


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32", "uint32", "int64"])
def test_the_bits_of_any_integer_are_turned(dtype: str) -> None:
    graph, _ = imported(helper.make_node("BitwiseNot", ["x"], ["y"]), x=np.array([0, 5], dtype))
    (ones,) = graph.constants.values()
    assert ones == ~np.zeros((), dtype)


def test_an_index_to_ignore_that_no_target_can_be_is_refused() -> None:
    node = helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"], ignore_index=1 << 40)
    reason = refused(node, x=X, t=np.zeros((2, 5, 6), np.int32))
    assert str(1 << 40) in reason and "i32" in reason


def test_integers_of_two_types_have_a_power() -> None:
    (y,) = computed(helper.make_node("Pow", ["x", "e"], ["y"]), x=np.array([2, -3, 5], np.int32), e=np.array([3, 3, 0]))
    assert y.dtype == np.int32 and y.tolist() == [8, -27, 1]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
@pytest.mark.parametrize(
    "shapes", [((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((4,), (4,))]
)
def test_matrices_of_integers_are_multiplied_exactly(shapes: Any, dtype: str) -> None:
    low = 0 if dtype == "uint32" else -(1 << 12)
    a, b = (np.random.default_rng(5).integers(low, 1 << 12, shape).astype(dtype) for shape in shapes)
    (y,) = computed(helper.make_node("MatMul", ["a", "b"], ["y"]), a=a, b=b)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, a @ b)


def test_gemm_of_integers_takes_no_factors() -> None:
    a, b, c = (np.arange(n * m).reshape(n, m) - 9 for n, m in ((4, 3), (5, 4), (3, 5)))
    gemm = helper.make_node("Gemm", ["a", "b", "c"], ["y"], transA=1, transB=1)
    (y,) = computed(gemm, a=a, b=b, c=c)
    np.testing.assert_array_equal(y, a.T @ b.T + c)
    (y,) = computed(helper.make_node("Gemm", ["a", "b", "c"], ["y"], transA=1, transB=1, beta=0.0), a=a, b=b, c=c)
    np.testing.assert_array_equal(y, a.T @ b.T)
    half = helper.make_node("Gemm", ["a", "b", "c"], ["y"], transA=1, transB=1, alpha=0.5)
    assert "alpha 0.5" in refused(half, a=a, b=b, c=c)


@pytest.mark.parametrize("value", [(1 << 53) + 1, (1 << 63) - 1])
def test_a_wide_integer_that_a_float_rounds_pads_nothing(value: int) -> None:
    """Neither as a constant of the model nor as one that is known when it is planned."""
    pad = helper.make_node("Pad", ["x", "c_pads", "c_value"], ["y"])
    given = {"x": np.arange(3), "c_pads": np.array([1, 0])}
    assert str(value) in refused(pad, **given, c_value=np.array(value))
    with pytest.raises(GraphError, match=str(value)):
        OPS["pad"].call({"x": TensorSpec((3,), DType.I64)}, {"pads": (1, 0), "value": value})
    (y,) = computed(pad, **given, c_value=np.array(-(1 << 63)))
    assert y.tolist() == [-(1 << 63), 0, 1, 2]


def test_models_in_memory_are_those_of_files(tmp_path: Path) -> None:
    graph, _ = imported(helper.make_node("Relu", ["x"], ["y"]), x=X)
    assert graph.inputs["x"].dtype is DType.F32 and graph.nodes[0].op == "relu"
    model = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 18)])
    model.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    model.graph.output.add(name="y")
    with pytest.raises(ModelError, match=r"net\.onnx: .*reads 'x'"):
        load_onnx_proto(model, "net.onnx")
