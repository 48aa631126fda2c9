"""ExecuTorch's programs: each operator of its Vulkan delegate and its portable kernels, by the ops' references, against
numpy; and what is refused."""

import sys

import numpy as np
import pytest
from required import required

required("flatbuffers")
from pte_kit import Size, T, Text, const, delegated, program, vulkan  # noqa: E402

from vkconv.check.reference import reference_outputs  # noqa: E402
from vkconv.core import DType, GraphError, ModelError, UnsupportedError  # noqa: E402
from vkconv.graph import load_model  # noqa: E402
from vkconv.graph.pte.names import RULES, rule_name  # noqa: E402
from vkconv.graph.pte.view import Memory, Ref  # noqa: E402

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
ROWS = RNG.standard_normal((2, 5, 6)).astype(np.float32)
WHERE = np.array([[2, 0, 1], [1, 1, 4]], np.int64)
DEEP = RNG.standard_normal((2, 8, 5, 3)).astype(np.float32)
W, B = RNG.standard_normal((4, 6)).astype(np.float32), RNG.standard_normal(4).astype(np.float32)
INF = float("inf")


def found(data, *inputs):
    """The outputs of a program for its inputs in their order."""
    graph = load_model(data)
    made = reference_outputs(graph, dict(zip(graph.inputs, inputs, strict=True)))
    return list(made.values())


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


def test_delegates_between_kernels():
    """Two delegates and a kernel, 64-bit integers that are 32-bit ones inside, a move, blobs in segments."""
    i = T((2, 3), "i32", staging="i64")
    first = vulkan({"i": T((2, 3), "i32"), "j": i}, [("aten.add.Tensor", ["i", "i", 1], "j")], "i", "j")
    second = vulkan({"i": i, "k": i}, [("aten.neg.default", ["i"], "k")], "i", "k")
    tensors = {name: T((2, 3), "i64") for name in "xabcy"}
    steps = [(0, "x a"), ("aten::mul.out", ["a", "x"], "b"), (1, "b c"), ("move", "c", "y")]
    for inline in (True, False):
        graph = load_model(program(tensors, steps, "x", "y x", [first, second], inline=inline))
        assert [n.attrs.get("to") for n in graph.nodes if n.op == "cast"] == ["i32", "i64"] * 2
        made = list(reference_outputs(graph, {"input_0": WHERE}).values())
        np.testing.assert_array_equal(made[0], -2 * WHERE * WHERE)
        np.testing.assert_array_equal(made[1], WHERE)


def test_views_are_what_lies_in_the_same_memory():
    """ExecuTorch leaves views of planned memory out: another value at the same place is the same data."""
    tensors = {"x": T((2, 6), memory=(1, 0)), "v": T((3, 4), memory=(1, 0)), "a": T((3, 4), memory=(1, 48))}
    tensors |= {"b": T((4, 3), memory=(1, 48)), "y": T((4, 3), memory=(1, 0)), "z": T((12,), memory=(1, 0))}
    steps = [("aten::neg.out", ["v"], "a"), ("aten::exp.out", ["b"], "y")]
    x = RNG.standard_normal((2, 6)).astype(np.float32)
    made = found(program(tensors, steps, "x", "z"), x)[0]
    np.testing.assert_allclose(made, np.exp(-x.reshape(12)), rtol=1e-6)
    tensors["v"] = T((3, 4), memory=(1, 16))  # where nothing was written
    with pytest.raises(UnsupportedError, match="a state that is kept between runs"):
        load_model(program(tensors, steps, "x", "z"))


@pytest.mark.parametrize("initial", [None, 2.5])
def test_what_a_run_leaves_to_the_next_is_an_input_and_an_output(initial):
    """Also where it is seen in another shape, and is changed before the end."""
    z = T((2, 3), memory=(1, 0)) if initial is None else const(np.full((2, 3), initial), memory=(1, 0))
    tensors = {"x": T((2, 3)), "z": z, "seen": T((6,), memory=(1, 0)), "s": T((2, 3), memory=(1, 32))}
    tensors |= {"a": T((6,)), "b": T((6,)), "fixed": const(np.ones(6), memory=(2, 0)), "y": T((6,)), "v": T((6,))}
    steps = [
        ("aten::neg.out", ["seen"], "a"),
        ("aten::add.out", ["z", "x", 1], "s"),
        ("aten::copy_", ["z", "s", False], "z"),
        ("aten::exp.out", ["seen"], "b"),
        ("aten::add.out", ["a", "b", 1], "v"),
        ("aten::add.out", ["v", "fixed", 1], "y"),
    ]
    graph = load_model(program(tensors, steps, "x", "y"))
    assert list(graph.inputs) == ["input_0", "state_0"] and graph.outputs == ("output_0", "state_0/next")
    assert graph.metadata["pte.state.state_0"] == "state_0/next"
    assert float(graph.metadata["pte.initial.state_0"]) == (initial or 0)
    state = held = np.full((2, 3), initial or 0.0, np.float32)
    for _ in range(3):
        x = RNG.standard_normal((2, 3)).astype(np.float32)
        made = reference_outputs(graph, {"input_0": x, "state_0": state})
        np.testing.assert_allclose(made["output_0"], (1 - held + np.exp(held + x)).reshape(6), rtol=1e-5)
        held, state = held + x, made["state_0/next"].astype(np.float32)
        np.testing.assert_allclose(state, held, rtol=1e-5)


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


def test_memory_forgets_what_is_written_over():
    memory, a, b = Memory(), Ref(1, 1), Ref(1, 2)
    memory.write((1, 0), 16, a)
    memory.write((1, 16), 16, b)
    assert memory.at((1, 0), 16) == a and memory.at((1, 16), 16) == b and memory.at((2, 0), 16) is None
    assert memory.at((1, 0), 8) is None
    memory.write((1, 8), 16, b)  # over half of each
    assert memory.at((1, 0), 16) is None and memory.at((1, 16), 16) is None and memory.at((1, 8), 16) == b
    memory.write((1, 0), 64, None)
    assert memory.at((1, 8), 16) is None and memory.at((1, 0), 64) is None


def test_constants_of_a_program_lie_in_the_order_that_it_says():
    w = RNG.standard_normal((2, 3, 5, 7)).astype(np.float32)
    tensors = {"x": T(w.shape), "w": const(w, order=(0, 2, 3, 1)), "y": T(w.shape)}
    np.testing.assert_allclose(found(program(tensors, [("aten::mul.out", ["x", "w"], "y")], "x", "y"), X)[0], X * w)


@pytest.mark.parametrize("named", ["", "key"])
def test_forced_f16_is_f32_with_weights_of_f16(named):
    """By the option, or by tensors of f16 that come in as f32."""
    shape = ROWS.shape
    tensors = {"x": T(shape, "f16", staging="f32"), "w": const(ROWS, "f16", named=named)}
    tensors["y"] = T(shape, "f16", staging="f32")
    data = delegated(tensors, [("aten.mul.Tensor", ["x", "w"], "y")], "x", "y")
    graph = load_model(data)
    assert graph.metadata["pte.force_fp16"] == "true" and {s.dtype for s in graph.inputs.values()} == {DType.F32}
    np.testing.assert_allclose(found(data, ROWS)[0], ROWS * ROWS.astype("f2").astype("f4"), rtol=1e-6)
    tensors |= {name: T(shape, "f16") for name in "xy"}
    outer = {name: T(shape) for name in "xy"}
    again = delegated(tensors, [("aten.mul.Tensor", ["x", "w"], "y")], "x", "y", outer, options={"force_fp16": b"\1"})
    assert load_model(again).nodes == graph.nodes
    assert (
        load_model(delegated(tensors, [("aten.mul.Tensor", ["x", "w"], "y")], "x", "y")).inputs["input_0"].dtype
        == "f16"
    )


def test_sizes_are_those_of_the_file():
    """A size that the program finds out is the one that there is, also across a delegate's border."""
    sliced = [("aten.slice_copy.Tensor", ["x", 0, "n", 2, 1], "y")]
    inner = vulkan({"x": T((2, 6)), "n": Size(), "y": T((1, 6))}, sliced, "x n", "y")
    tensors = {"x": T((2, 6)), "k": const(np.zeros((3, 1))), "n": 0, "y": T((1, 6))}
    steps = [("aten::sym_size.int", ["k", 1], "n"), (0, "x n y")]
    x = RNG.standard_normal((2, 6)).astype(np.float32)
    np.testing.assert_array_equal(found(program(tensors, steps, "x", "y", [inner]), x)[0], x[1:2])
    unknown = [("executorch_prim::add.Scalar", ["n", 1], "n"), (0, "x n y")]
    with pytest.raises(UnsupportedError, match=r"executorch_prim::add\.Scalar.*computes a size while"):
        load_model(program(tensors, unknown, "x", "y", [inner]))


def test_inputs_that_are_numbers_are_fixed_and_outputs_have_names_of_their_own():
    tensors = {"x": T((3,)), "n": 4, "y": T((3,))}
    graph = load_model(program(tensors, [("aten::add.out", ["x", "x", 1], "y")], "n x", "y y x", method="encode"))
    assert list(graph.inputs) == ["input_1"] and graph.metadata["pte.input_0"] == "4"
    assert graph.outputs == ("output_0", "output_1", "output_2") and graph.metadata["pte.method"] == "encode"
    graph = load_model(
        program(tensors, [("aten::add.out", ["x", "x", 1], "y")], "x", "y", methods=("encode", "decode"))
    )
    assert graph.metadata["pte.other_methods"] == "encode, decode"


def small(**more):
    return program({"x": T((3,)), "y": T((3,))}, [("aten::relu.out", ["x"], "y")], "x", "y", **more)


def conv_delegate(**more):
    tensors = {"x": T((1, 3, 5, 5)), "w": const(W3, named=more.pop("named", "")), "y": T((1, 4, 3, 3))}
    return delegated(tensors, [("aten.convolution.default", ["x", "w", *CONV, 1], "y")], "x", "y", **more)


TENSORS = {"x": T((3,)), "y": T((3,)), "z": T((3,))}
REFUSED = {
    "empty": (b"", ModelError, "the file is empty"),
    "no program": (b"PK\3\4 nothing of it", ModelError, "a"),
    "another schema": (small(identifier=b"ET13"), ModelError, "of ExecuTorch's schema ET13; vkconv reads ET12"),
    "bundled": (small(identifier=b"BP08"), ModelError, r"a bundled program, .* load the \.pte file"),
    "version": (small(version=3), ModelError, "is of version 3 of ExecuTorch's programs; vkconv reads 0"),
    "methods": (small(method="a", methods=("b",)), ModelError, r"has 2 methods \('a', 'b'\), none of them forward"),
    "control flow": (small(jump=True), ModelError, "straight-line programs"),
    "backend": (conv_delegate(backend="XnnpackBackend"), UnsupportedError,
                r"XnnpackBackend \(delegate_1\): vkconv reads the graphs of VulkanBackend.*\n.*torch.export.save"),
    "operator": (program(TENSORS, [("aten::relux.out", ["x"], "y")], "x", "y"), UnsupportedError,
                 r"aten::relux.out .*no such operator \(did you mean 'relu.default'"),
    "quantized": (delegated(TENSORS, [("et_vk.q8ta_linear.default", ["x"], "y")], "x", "y"), UnsupportedError,
                  "which only ExecuTorch's kernels unpack"),
    "state": (program(TENSORS, [("aten::copy_.", ["z", "x"], "y")], "x", "y"), UnsupportedError, "kept between runs"),
    "in place": (program(TENSORS, [("aten::relu.out", ["y"], "x")], "x", "x"), UnsupportedError, "between runs"),
    "initial state": (
        program(TENSORS | {"z": const(np.arange(3), memory=(1, 0))},
                [("aten::add.out", ["x", "z", 1], "y"), ("aten::copy_", ["z", "y", False], "z")], "x", "y"),
        UnsupportedError, r"state_0.*begins with other numbers than one"),
    "a state of f64": (
        program(TENSORS | {"z": T((3,), "f64", memory=(1, 0))}, [("aten::copy_", ["z", "x", False], "z")], "x", "x"),
        UnsupportedError, r"state_0.*it has f64"),
    "external": (program(TENSORS | {"z": T((3,), external=True)}, [("aten::add.out", ["x", "z", 1], "y")], "x", "y"),
                 UnsupportedError, r"file of their own \(\.ptd\)"),
    "f64": (delegated({"x": T((3,), "f64"), "y": T((3,), "f64")}, [("aten.relu.default", ["x"], "y")], "x", "y"),
            UnsupportedError, r"it is f64, a type that vkconv does not have"),
    "delegate version": (program(TENSORS, [(0, "x y")], "x", "y",
                                 [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y", version="7")]),
                         ModelError, "of version '7'; vkconv reads 0"),
    "delegate schema": (program(TENSORS, [(0, "x y")], "x", "y",
                                [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y", identifier=b"VK09")]),
                        ModelError, "of schema 'VK09'; vkconv reads VK00"),
    "delegate blob": (program(TENSORS, [(0, "x y")], "x", "y",
                              [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y", magic=b"VH09")]),
                      ModelError, "does not begin as vkconv knows it"),
    "arguments": (program(TENSORS, [(0, "x y z")], "x", "y",
                          [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y")]),
                  ModelError, "1 inputs and 1 outputs is called with 3 values"),
    "buffer of a delegate": (program(TENSORS, [(0, "x y")], "x", "y",
                                     [vulkan(TENSORS, [("aten.relu.default", ["x"], "y")], "x", "y x")]),
                             UnsupportedError, r"VulkanBackend \(delegate_1\): it changes a value inside it"),
    "buffer in place": (delegated(TENSORS | {"z": const(np.ones(3))},
                                  [("et_vk.prepack.default", ["z"], "y"), ("aten.add.Tensor", ["y", "x", 1], "y")],
                                  "x", "y"), UnsupportedError, "it changes a value that was there before"),
    "a tensor for numbers": (program(TENSORS, [("aten::permute_copy.out", ["x", "x"], "z")], "x", "z"),
                             UnsupportedError, "a size that it takes is open"),
    "a number too large": (program({name: T((3,), "i32") for name in "xy"},
                                   [("aten::add.Scalar_out", ["x", 1 << 40, 1], "y")], "x", "y"),
                           UnsupportedError, "it takes a number that i32 does not hold"),
    "numbers for a tensor": (program(TENSORS, [("aten::cat.out", [3, 0], "z")], "x", "z"),
                             ModelError, "arguments that it cannot have"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name, tmp_path):
    data, error, said = REFUSED[name]
    (tmp_path / "a.pte").write_bytes(data)
    with pytest.raises(error, match=said) as told:
        load_model(tmp_path / "a.pte")
    assert str(told.value).startswith(f"{tmp_path / 'a.pte'}: ")


def test_a_convolution_without_an_upper_bound_is_a_relu():
    """ExecuTorch's largest float64 is no number of f32."""
    args = ["x", "w", *CONV, 1, 0, sys.float_info.max]
    tensors = {"x": T(X.shape), "w": const(W3), "y": T((2, 4, 3, 4))}
    graph = load_model(delegated(tensors, [("et_vk.conv_with_clamp.default", args, "y")], "x", "y"))
    assert [node.op for node in graph.nodes] == ["conv2d", "relu"]


def test_a_shape_that_no_call_makes_is_told():
    data = program({"x": T((3,)), "y": T((4,))}, [("aten::relu.out", ["x"], "y")], "x", "y")
    with pytest.raises(GraphError, match="is declared as 4:f32, and its nodes make 3:f32"):
        found(data, np.ones(3, np.float32))


def test_every_cut_is_told():
    data = conv_delegate(named="k", inline=False)
    load_model(data)
    for end in (*range(0, 700, 3), *range(700, len(data) - 16, 41)):
        with pytest.raises(ModelError):
            load_model(data[:end] if end > 8 else data[:8])


def test_one_list_for_many_calls_is_not_read_for_each():
    """What a few bytes say many times over: a list of a hundred thousand members for each of a thousand calls."""
    members = ["x"] * 100_000
    tensors = {"x": T((1,)), "y": T((100_000,)), "all": members}
    calls = [("aten::cat.out", ["all", 0], f"y{i}") for i in range(1000)]
    tensors |= {f"y{i}": T((100_000,)) for i in range(1000)}
    with pytest.raises(ModelError, match="lists of more than"):
        load_model(program(tensors, calls, "x", "y0"))
