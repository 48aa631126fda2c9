"""ExecuTorch's programs: each operator of its Vulkan delegate and its portable kernels, by the ops' references, against
numpy."""

import sys

import numpy as np
import pytest
from required import required

required("flatbuffers")
from pte_kit import T, Text, const, delegated, found, program  # noqa: E402

from vkconv.graph import load_model  # noqa: E402
from vkconv.graph.pte.names import RULES, rule_name  # noqa: E402

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
ROWS = RNG.standard_normal((2, 5, 6)).astype(np.float32)
WHERE = np.array([[2, 0, 1], [1, 1, 4]], np.int64)
DEEP = RNG.standard_normal((2, 8, 5, 3)).astype(np.float32)
W, B = RNG.standard_normal((4, 6)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)
INF = float("inf")


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def windows(x, kernel, stride, pad, fill):
    """Each window of an image's pixels, flattened behind (n, c, h, w)."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    made = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    return made.reshape(*made.shape[:4], -1)


def conv(x, w, stride=1, pad=0, groups=1):
    parts = [np.split(v, groups, axis) for v, axis in ((x, 1), (w, 0))]
    made = []
    for part, weights in zip(*parts, strict=True):
        seen = windows(part, weights.shape[2], stride, pad, 0).astype(np.float64)
        made.append(np.einsum("nchwk,ock->nohw", seen, weights.reshape(*weights.shape[:2], -1)))
    return np.concatenate(made, 1)


W3, G3 = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 3, 3, 3), (6, 1, 3, 3)))
CONV = (None, (2, 2), (1, 1), (1, 1), False, (0, 0))
PLANE = windows(X, 2, 2, 0, 0)

# Operator (of a delegate; "_copy" where it has that), its arguments with arrays in them, and what it makes of them. The
# first argument is the program's input, other arrays are constants.
CASES = [
    ("et_vk.conv_with_clamp.default", (X, W3, *CONV, 1, 0.0, 0.9), conv(X, W3, 2, 1).clip(0, 0.9)),
    ("et_vk.conv_with_clamp.default", (X, W3, *CONV, 1, 0.0, INF), conv(X, W3, 2, 1).clip(0)),
    ("et_vk.conv_with_clamp.default", (X, W3, *CONV, 1, -sys.float_info.max, 0.3), conv(X, W3, 2, 1).clip(None, 0.3)),
    ("aten.convolution.default", (X, G3, *CONV, 3), conv(X, G3, 2, 1, 3)),
    ("aten.convolution.default", (ROWS, W[:, :5, None], B, (1,), (0,), (1,), False, (0,), 1),
     np.einsum("ncl,oc->nol", ROWS, W[:, :5]) + B[:, None]),
    ("aten.linear.default", (ROWS, W, B), ROWS @ W.T + B),
    ("aten.linear.default", (ROWS, W, None), ROWS @ W.T),
    ("aten.addmm.default", (ROWS[0], ROWS[1], np.eye(6, dtype="f4"), 2.0, 0.5), 2 * ROWS[0] + 0.5 * ROWS[1]),
    ("aten.bmm.default", (ROWS, ROWS.transpose(0, 2, 1).copy()), ROWS @ ROWS.transpose(0, 2, 1)),
    ("aten.add.Tensor", (ROWS, ROWS[0], 3), ROWS + 3 * ROWS[0]),
    ("aten.sub.Tensor", (ROWS, ROWS[0], 1), ROWS - ROWS[0]),
    ("aten.div.Tensor_mode", (ROWS, ROWS[0], Text("floor")), np.floor(ROWS / ROWS[0])),
    ("aten.pow.Tensor_Scalar", (ROWS, 2), ROWS**2),
    ("aten.clamp.default", (ROWS, -0.5, None), ROWS.clip(-0.5)),
    ("aten.hardtanh.default", (ROWS, 0.0, 6.0), ROWS.clip(0, 6)),
    ("aten.gelu.default", (ROWS, Text("tanh")),
     ROWS / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (ROWS + 0.044715 * ROWS.astype("f8") ** 3)))),
    ("aten.log1p.default", (np.array([1e-7, 3.0, 0.0, -0.5, INF], "f4"),), np.log1p([1e-7, 3.0, 0.0, -0.5, INF])),
    ("aten.log10.default", (np.abs(ROWS),), np.log10(np.abs(ROWS))),
    ("aten.hardshrink.default", (ROWS, 0.4), np.where(np.abs(ROWS) > 0.4, ROWS, 0)),
    ("aten.leaky_relu.default", (ROWS, 0.2), np.where(ROWS > 0, ROWS, 0.2 * ROWS)),
    ("aten.view_copy.default", (ROWS, (5, 12)), ROWS.reshape(5, 12)),
    ("aten.permute_copy.default", (X, (0, 2, 3, 1)), X.transpose(0, 2, 3, 1)),
    ("aten.squeeze_copy.dims", (X[:, :1], (1,)), X[:, 0]),
    ("aten.unsqueeze_copy.default", (ROWS, 1), ROWS[:, None]),
    ("aten.expand_copy.default", (X[:, :1], (2, 4, 5, 7), False), np.broadcast_to(X[:, :1], (2, 4, 5, 7))),
    ("aten.select_copy.int", (X, 2, -2), X[:, :, -2]),
    ("aten.slice_copy.Tensor", (X, 3, 1, 1 << 62, 2), X[..., 1::2]),
    ("aten.t_copy.default", (W,), W.T),
    ("aten.flip.default", (ROWS, (1,)), ROWS[:, ::-1]),
    ("aten.cat.default", ([ROWS, ROWS[:, :2]], 1), np.concatenate([ROWS, ROWS[:, :2]], 1)),
    ("aten.constant_pad_nd.default", (ROWS, (1, 2, 0, 3), 0.5),
     np.pad(ROWS, ((0, 0), (0, 3), (1, 2)), constant_values=0.5)),
    ("aten.repeat.default", (ROWS, (1, 2, 1)), np.tile(ROWS, (1, 2, 1))),
    ("aten.index_select.default", (ROWS, 1, WHERE[0]), ROWS[:, WHERE[0]]),
    ("aten.embedding.default", (ROWS[0], WHERE, -1, False, False), ROWS[0][WHERE]),
    ("aten.gather.default", (ROWS, 2, WHERE[:, None]), np.take_along_axis(ROWS[:, :1], WHERE[:, None], 2)),
    ("aten.index.Tensor", (ROWS, [None, WHERE[0]]), ROWS[:, WHERE[0]]),
    ("aten.mean.dim", (X, (2, 3), True, None), X.mean((2, 3), keepdims=True)),
    ("aten.sum.dim_IntList", (X, (1,), False, None), X.sum(1)),
    ("aten.amax.default", (X, (-1,), False), X.max(-1)),
    ("aten.argmax.default", (X, 1, False), X.argmax(1).astype(np.int32)),
    ("aten._softmax.default", (ROWS, -1, False), softmax(ROWS, -1)),
    ("aten._log_softmax.default", (ROWS, 1, False), np.log(softmax(ROWS, 1))),
    ("aten.avg_pool2d.default", (X, (2, 2), (), (0, 0), False, True, None), PLANE.mean(-1)),
    ("aten.max_pool2d.default", (X, (3, 3), (2, 2), (1, 1), (1, 1), False), windows(X, 3, 2, 1, -INF).max(-1)),
    ("et_vk.grid_priors.default", (X[:, :, :2, :3], 8, 0.5),
     np.array([[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12]], "f4")),
    ("et_vk.rms_norm.default", (ROWS, W[0], 1e-5),
     ROWS / np.sqrt((ROWS**2).mean(-1, keepdims=True) + 1e-5) * W[0]),
    ("et_vk.sdpa.default", (ROWS[None], ROWS[None], ROWS[None], None, 0.5),
     (softmax(0.5 * ROWS @ ROWS.transpose(0, 2, 1), -1) @ ROWS)[None]),
    ("aten.upsample_nearest2d.vec", (X, (10, 14), None), X.repeat(2, 2).repeat(2, 3)),
    ("aten.pixel_shuffle.default", (DEEP, 2),
     DEEP.reshape(2, 2, 2, 2, 5, 3).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 10, 6)),
    ("aten.full.default", ((2, 3), 1.5, None, None, None, None), np.full((2, 3), 1.5)),
    ("aten.eq.Scalar", (np.round(ROWS), 1), np.round(ROWS) == 1),
    ("aten.where.self", (ROWS > 0, ROWS, ROWS[0]), np.where(ROWS > 0, ROWS, ROWS[0])),
    ("aten.bitwise_and.Tensor", (ROWS > 0, ROWS[0] < 1), (ROWS > 0) & (ROWS[0] < 1)),
    ("aten._to_copy.default", (ROWS, None, None, None, None, False, None), ROWS.astype(np.int32)),
    ("dim_order_ops._clone_dim_order.default", (ROWS, False, (0, 2, 1)), ROWS),
    ("aten.arange.start_step", (2, 11, 3, None, None, None, None), np.array([2, 5, 8], np.int32)),
]  # fmt: skip
DTYPES = {"float32": "f32", "float64": "f32", "int64": "i64", "int32": "i32", "bool": "bool", "float16": "f16"}


def called(args, made, narrow):
    """The tensors of a call and its arguments by names, the first array as the input."""
    tensors, inputs = {}, []

    def place(given, nested=False):
        if isinstance(given, list):
            return [place(v, True) for v in given]
        if not isinstance(given, np.ndarray):
            return given
        dtype = DTYPES[given.dtype.name]
        name = f"t{len(tensors)}"
        if not inputs:
            inputs.append(given)
            name, tensors["x"] = "x", T(given.shape, dtype)
        else:
            tensors[name] = const(given, "i32" if narrow and dtype == "i64" else dtype)
        return name

    placed = [place(a) for a in args]
    tensors["y"] = T(made.shape, DTYPES[made.dtype.name])
    return tensors, placed, inputs


@pytest.mark.parametrize(("operator", "args", "made"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_an_operator_of_a_delegate(operator, args, made):
    tensors, placed, inputs = called(args, np.asarray(made), narrow=True)
    data = delegated(tensors, [(operator, placed, "y")], "x" if inputs else "", "y")
    (array,) = found(data, *inputs)
    np.testing.assert_allclose(array, made, rtol=2e-6, atol=2e-6)


# Overloads of kernels, by those of operators; those of a few by their names.
OUT = {"Tensor": "out", "dim": "out", "dim_IntList": "IntList_out", "default": "out", "start_step": "start_out"}
OUT_OF = {"bitwise_and": "Tensor_out", "div": "out_mode", "index": "Tensor_out", "slice_copy": "Tensor_out"}
KERNELS = [case for case in CASES if not case[0].startswith("et_vk")]


@pytest.mark.parametrize(("operator", "args", "made"), KERNELS, ids=[f"{i}-{c[0]}" for i, c in enumerate(KERNELS)])
def test_an_operator_of_a_portable_kernel(operator, args, made):
    """The same by the overloads that write to a given tensor, lists of numbers by numbers of values."""
    space, name, overload = operator.split(".")
    overload = OUT_OF.get(name) or OUT.get(overload, f"{overload}_out")
    tensors, placed, inputs = called(args, np.asarray(made), narrow=False)
    data = program(tensors, [(f"{space}::{name}.{overload}", placed, "y")], "x" if inputs else "", "y")
    (array,) = found(data, *inputs)
    np.testing.assert_allclose(array, made, rtol=2e-6, atol=2e-6)


def test_names_of_operators():
    names = {"aten.view_copy.default": "view.default", "aten::select_copy.int_out": "select.int", "sym_size.int": ""}
    names |= {"aten::mean.out": "mean.dim", "aten::add.out": "add.Tensor", "aten::add.Scalar_out": "add.Scalar"}
    names |= {"executorch_prim::et_view.default": "executorch_prim.et_view.default", "aten::relu.out": "relu.default"}
    names |= {"aten::upsample_bilinear2d.vec_out": "upsample_bilinear2d.vec", "aten::_to_copy.out": "_to_copy.default"}
    for name, rule in names.items():
        assert rule_name(name) == (rule or name)
        assert not rule or rule in RULES


def test_outputs_of_several():
    """A split, the first output of a normalization, maxima with their places in a channel."""
    a, b, y, mean, rest = T((2, 1, 5, 7)), T((2, 2, 5, 7)), T(X.shape), T((2, 3, 5, 1)), T((2, 3, 5, 1))
    most, where = T((2, 3, 2, 3)), T((2, 3, 2, 3), "i32")
    tensors = {"x": T(X.shape), "a": a, "b": b, "y": y, "mean": mean, "rest": rest, "most": most, "where": where}
    tensors["ln"] = const(np.ones(7))
    calls = [
        ("aten.split_with_sizes_copy.default", ["x", (1, 2), 1], ["a", "b"]),
        ("aten.native_layer_norm.default", ["x", (7,), "ln", None, 1e-5], ["y", "mean", "rest"]),
        ("aten.max_pool2d_with_indices.default", ["x", (2, 2), (2, 2), (0, 0), (1, 1), False], ["most", "where"]),
    ]
    made = found(delegated(tensors, calls, "x", "b y most where"), X)
    np.testing.assert_array_equal(made[0], X[:, 1:])
    normal = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(made[1], normal, atol=1e-6)
    np.testing.assert_array_equal(made[2], PLANE.max(-1))
    best = PLANE.argmax(-1)
    rows, columns = 2 * np.arange(2)[:, None] + best // 2, 2 * np.arange(3) + best % 2
    np.testing.assert_array_equal(made[3], rows * 7 + columns)
    assert made[3].dtype == np.int32
    kernel = ("aten::native_layer_norm.out", ["x", (7,), "ln", None, 1e-5], "y mean rest")
    np.testing.assert_allclose(found(program(tensors, [kernel], "x", "y"), X)[0], normal, atol=1e-6)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_slices_are_put_where_an_index_says(axis, accumulate):
    """One value for all of them, or one for each, also from the end."""
    x, at = RNG.standard_normal((4, 5, 3)).astype(np.float32), np.array([[0, -1], [2, 1]])
    shape = (*x.shape[:axis], 2, 2, *x.shape[axis + 1 :])
    for dims in (shape, (1, *shape[1:]), (3,)):
        values = RNG.standard_normal(dims).astype(np.float32)
        want = x.copy()
        place = (*(slice(None),) * axis, at)
        (np.add.at(want, place, np.broadcast_to(values, shape)) if accumulate else want.__setitem__(place, values))
        tensors = {"x": T(x.shape), "at": T(at.shape, "i64"), "v": T(dims), "y": T(x.shape)}
        index = [None] * axis + ["at"]
        made = found(
            program(tensors, [("aten::index_put.out", ["x", index, "v", accumulate], "y")], "x at v", "y"),
            x,
            at,
            values,
        )
        np.testing.assert_allclose(made[0], want, rtol=1e-6)


def test_a_convolution_without_an_upper_bound_is_a_relu():
    """ExecuTorch's largest float64 is no number of f32."""
    args = ["x", "w", *CONV, 1, 0, sys.float_info.max]
    tensors = {"x": T(X.shape), "w": const(W3), "y": T((2, 4, 3, 4))}
    graph = load_model(delegated(tensors, [("et_vk.conv_with_clamp.default", args, "y")], "x", "y"))
    assert [node.op for node in graph.nodes] == ["conv2d", "relu"]
