"""Ops on bytes that no kernel has: computed in 32 bits, and the same bytes come out."""

import dataclasses

import numpy as np
import pytest
from graph_kit import evaluate, make_bound

from vkconv.core import DType
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.ops import OPS
from vkconv.plan.bytes import widen_bytes

RNG = np.random.default_rng(8)


def every_byte(dtype):
    a = np.arange(256).astype(np.uint8).view(dtype)
    return a, np.roll(a, 37)


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "minimum", "less", "bit_xor"])
def test_arithmetic_wraps_as_bytes_do(op, dtype):
    a, b = every_byte(dtype.numpy)
    spec = TensorSpec((256,), dtype)
    bound = make_bound(
        {"a": spec, "b": spec}, [(op, "a b", "t"), (op, "t b", "y")] if op != "less" else [(op, "a b", "y")], "y"
    )
    made, remarks = widen_bytes(bound, OPS, load_device("lavapipe"))
    assert remarks and not any(
        s.dtype in (DType.I8, DType.U8) for n in made.nodes if n.call.op == op for s in n.call.specs.values()
    )
    with np.errstate(over="ignore"):
        (want,), (got,) = (evaluate(graph, {"a": a, "b": b}) for graph in (bound, made))
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()


EDGES = {
    DType.I16: (-(1 << 15), -1, 0, 1, 7, 255, 256, (1 << 15) - 1),
    DType.U16: (0, 1, 7, 255, 256, 1 << 15, (1 << 16) - 2, (1 << 16) - 1),
    DType.U32: (0, 1, 7, 65535, 65536, 1 << 31, (1 << 32) - 2, (1 << 32) - 1),
}


@pytest.mark.parametrize(("dtype", "wider"), [(DType.I16, "i32"), (DType.U16, "i32"), (DType.U32, "i64")])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "mod", "maximum", "less", "shift_left", "shift_right"])
def test_arithmetic_at_the_ends_of_a_type_is_that_of_wider_integers(op, dtype, wider):
    """Every pair of numbers at the ends, and in the wider type on the way; shifts by less than the bits of the type."""
    a, b = (grid.ravel() for grid in np.meshgrid(EDGES[dtype], EDGES[dtype]))
    if op in ("div", "mod"):
        b = np.where(b == 0, 3, b)
    if op.startswith("shift"):
        a, b = np.abs(a), np.abs(b) % 8
    a, b = a.astype(dtype.numpy), b.astype(dtype.numpy)
    spec = TensorSpec(a.shape, dtype)
    bound = make_bound({"a": spec, "b": spec}, [(op, "a b", "y")], "y")
    made, remarks = widen_bytes(bound, OPS, load_device("lavapipe"))
    assert list(remarks.values()) == [f"in {wider}: no kernel of it has {dtype}"]
    with np.errstate(over="ignore"):
        (want,), (got,) = (evaluate(graph, {"a": a, "b": b}) for graph in (bound, made))
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "sum_square", "l1", "mean"])
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I16, DType.U32])
def test_reductions_are_those_of_wider_integers(op, dtype):
    x = np.resize(EDGES.get(dtype, every_byte(dtype.numpy)[0]), (31, 7)).astype(dtype.numpy)
    bound = make_bound({"x": TensorSpec(x.shape, dtype)}, [("reduce", "x", "y", {"op": op, "axes": (1,)})], "y")
    made, remarks = widen_bytes(bound, OPS, load_device("h200"))
    assert len(remarks) == 1
    with np.errstate(over="ignore"):
        (want,), (got,) = (evaluate(graph, {"x": x}) for graph in (bound, made))
    assert got.dtype == want.dtype == dtype.numpy and got.tobytes() == want.tobytes()
    if op == "mean":
        whole = [abs(sum(row)) // 7 * (1 if sum(row) >= 0 else -1) for row in x.tolist()]
        assert want.ravel().tolist() == whole


def test_what_no_wider_kernel_takes_either_stays():
    bound = make_bound({"a": TensorSpec((4,), DType.U32)}, [("cumulative", "a", "y", {"axis": 0})], "y")
    ops = {**OPS, "cumulative": dataclasses.replace(OPS["cumulative"], routes=())}
    made, remarks = widen_bytes(bound, ops, load_device("lavapipe"))
    assert made is bound and not remarks


def test_ops_that_move_bytes_in_a_row_are_cast_once_before_and_once_behind():
    spec = TensorSpec((2, 3), DType.U8)
    nodes = [
        ("concat", "a b", "c", {"axis": 1}),
        ("transpose", "c", "t"),
        ("slice", "t", "y", {"starts": (1,), "ends": (4,)}),
    ]
    bound = make_bound({"a": spec, "b": spec}, nodes, "y")
    made, _ = widen_bytes(bound, OPS, load_device("h200"))
    assert [node.call.op for node in made.nodes] == ["cast", "cast", "concat", "transpose", "slice", "cast"]
    arrays = {name: RNG.integers(0, 256, (2, 3)).astype(np.uint8) for name in "ab"}
    np.testing.assert_array_equal(evaluate(made, arrays)[0], evaluate(bound, arrays)[0])


def test_what_kernels_have_in_bytes_stays():
    bound = make_bound(
        {"x": TensorSpec((4,), DType.U8)},
        [("cast", "x", "t", {"to": "i8"}), ("reshape", "t", "y", {"shape": (2, 2)})],
        "y",
    )
    made, remarks = widen_bytes(bound, OPS, load_device("lavapipe"))
    assert made is bound and not remarks


def test_bools_are_moved_as_numbers_but_conditions_stay():
    spec = TensorSpec((3, 5), DType.BOOL)
    nodes = [
        ("transpose", "a", "t"),
        ("slice", "t", "s", {"starts": (1,), "ends": (4,), "axes": (0,)}),
        ("transpose", "b", "u"),
        ("slice", "u", "v", {"starts": (0,), "ends": (3,), "axes": (0,)}),
        ("where", "s s v", "w"),
        ("concat", "w s", "c", {"axis": 1}),
        ("pad", "c", "y", {"pads": (1, 0, 0, 2)}),
    ]
    bound = make_bound({"a": spec, "b": spec}, nodes, "y")
    made, remarks = widen_bytes(bound, OPS, load_device("mali-g715"))
    assert len(remarks) == len(nodes)
    (where,) = (node.call for node in made.nodes if node.call.op == "where")
    assert [str(spec.dtype) for spec in where.specs.values()] == ["bool", "i32", "i32", "i32"]
    arrays = {name: RNG.random((3, 5)) > 0.5 for name in "ab"}
    (want,), (got,) = (evaluate(graph, arrays) for graph in (bound, made))
    assert got.dtype == want.dtype == bool
    np.testing.assert_array_equal(got, want)
    assert [node.call.op for node in made.nodes].count("cast") <= 9


@pytest.mark.parametrize("op", ["equal", "less", "greater_equal"])
def test_bools_compare_as_numbers(op):
    spec = TensorSpec((4,), DType.BOOL)
    bound = make_bound({"a": spec, "b": spec}, [(op, "a b", "y")], "y")
    made, remarks = widen_bytes(bound, OPS, load_device("lavapipe"))
    assert list(remarks.values()) == ["in i32: no kernel of it has bool"]
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    (got,) = evaluate(made, {"a": a, "b": b})
    np.testing.assert_array_equal(got, getattr(np, op)(a, b))
