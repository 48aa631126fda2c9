"""Layout, alias, gather, pad and host ops: ONNX's rules on hand-made cases, and refusals."""

import numpy as np
import pytest

from vkconv.core import Array, DType, GraphError
from vkconv.graph.ir import TensorSpec
from vkconv.ops.core.base import Op
from vkconv.ops.movement.alias import FLATTEN, RESHAPE, SQUEEZE, UNSQUEEZE
from vkconv.ops.movement.gather import GATHER
from vkconv.ops.movement.host import CONSTANT_OF_SHAPE, RANGE, SHAPE, SIZE
from vkconv.ops.movement.layout import CONCAT, EXPAND, SLICE, SPLIT, TILE, TRANSPOSE
from vkconv.ops.movement.pad import PAD

I64 = DType.I64
TEN = np.arange(10)


def spec(*shape: int, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def outputs(op: Op, attrs: dict[str, object], **arrays: Array) -> list[list[object]]:
    call = op.call({n: TensorSpec(a.shape, DType.of(a.dtype)) for n, a in arrays.items()}, attrs)  # type: ignore[arg-type]
    return [np.asarray(y).tolist() for y in op.reference(call, arrays)]


@pytest.mark.parametrize(
    ("start", "end", "step", "want"),
    [
        (2, 5, 1, [2, 3, 4]),
        (-3, 2**31, 1, [7, 8, 9]),
        (0, -8, 1, [0, 1]),
        (5, 2, 1, []),
        (20, 30, 1, []),
        (-1, -(2**63), -3, [9, 6, 3, 0]),
        (20, 6, -1, [9, 8, 7]),
        (4, -100, -2, [4, 2, 0]),
        (0, -11, -1, [0]),
    ],
)
def test_slice_clamps_as_onnx_says(start: int, end: int, step: int, want: list[int]) -> None:
    attrs = {"starts": (start,), "ends": (end,), "steps": (step,)}
    assert outputs(SLICE, attrs, x=TEN) == [want]
    call = SLICE.call({"x": spec(10)}, attrs)
    assert SLICE.call({"x": spec(10)}, call.attrs) == call


def test_split_makes_equal_parts_and_a_smaller_last_one() -> None:
    assert outputs(SPLIT, {"num_outputs": 3}, x=TEN) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert outputs(SPLIT, {"sizes": (3, 7)}, x=TEN) == [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9]]
    assert list(SPLIT.call({"x": spec(10)}, {"num_outputs": 3}).outputs) == ["y0", "y1", "y2"]


@pytest.mark.parametrize(
    ("shape", "allowzero", "want"),
    [((0, -1), False, (2, 12)), ((4, 6), False, (4, 6)), ((-1,), False, (24,)), ((0, 0, 2, 2), False, (2, 3, 2, 2))],
)
def test_reshape_fills_in_dimensions(shape: tuple[int, ...], allowzero: bool, want: tuple[int, ...]) -> None:
    assert RESHAPE.call({"x": spec(2, 3, 4)}, {"shape": shape, "allowzero": allowzero}).shape("y") == want


def test_reshape_of_an_empty_tensor_reads_back() -> None:
    call = RESHAPE.call({"x": spec(0, 3)}, {"shape": (3, 0), "allowzero": True})
    assert call.shape("y") == (3, 0) and RESHAPE.call({"x": spec(0, 3)}, call.attrs) == call


def test_alias_shapes() -> None:
    assert SQUEEZE.call({"x": spec(1, 3, 1)}).shape("y") == (3,)
    assert SQUEEZE.call({"x": spec(1, 3, 1)}, {"axes": (-1,)}).shape("y") == (1, 3)
    assert UNSQUEEZE.call({"x": spec(3, 5)}, {"axes": (-1, 0)}).shape("y") == (1, 3, 5, 1)
    assert FLATTEN.call({"x": spec(2, 3, 4)}, {"axis": 0}).shape("y") == (1, 24)
    assert FLATTEN.call({"x": spec(2, 3, 4)}, {"axis": -1}).shape("y") == (6, 4)


def test_gather_counts_back_from_the_end() -> None:
    assert outputs(GATHER, {}, x=TEN, indices=np.array([[1, -1], [-10, 0]])) == [[[1, 9], [0, 0]]]
    with pytest.raises(GraphError, match="span 0 to 10; the axis has 10"):
        outputs(GATHER, {}, x=TEN, indices=np.array([0, 10]))


def test_pad_modes() -> None:
    x = np.arange(3)
    assert outputs(PAD, {"pads": (2, 1), "value": 9.0}, x=x) == [[9, 9, 0, 1, 2, 9]]
    assert outputs(PAD, {"pads": (2, 1), "mode": "reflect"}, x=x) == [[2, 1, 0, 1, 2, 1]]
    assert outputs(PAD, {"pads": (2, 1), "mode": "edge"}, x=x) == [[0, 0, 0, 1, 2, 2]]
    assert outputs(PAD, {"pads": (-1, 2), "mode": "edge"}, x=x) == [[1, 2, 2, 2]]


def test_values_known_from_shapes_alone() -> None:
    call = SHAPE.call({"x": spec(2, 3, 5)}, {"start": -2})
    assert SHAPE.fold_from_specs and [a.tolist() for a in SHAPE.fold_from_specs(call)] == [[3, 5]]
    assert SIZE.fold_from_specs and SIZE.fold_from_specs(SIZE.call({"x": spec(2, 3, 5)}))[0] == 30
    assert outputs(CONSTANT_OF_SHAPE, {"shape": (2,), "value": 3.0, "dtype": "i64"}) == [[3, 3]]
    assert outputs(RANGE, {"start": 3.0, "limit": -4.0, "delta": -3.0}) == [[3, 0, -3]]
    assert outputs(RANGE, {"start": 3.0, "limit": 3.0}) == [[]]


@pytest.mark.parametrize(
    ("op", "specs", "attrs", "message"),
    [
        (TRANSPOSE, {"x": spec(2, 3)}, {"perm": (0, 0)}, r"perm \[0, 0\] is no permutation of the 2 axes of 2x3"),
        (SLICE, {"x": spec(4)}, {"starts": (0,), "ends": (1,), "steps": (0,)}, r"steps \[0\] hold a 0"),
        (SLICE, {"x": spec(4)}, {"starts": (0,), "ends": (1, 2)}, "1 starts, 2 ends"),
        (SLICE, {"x": spec(4)}, {"starts": (0,), "ends": (1,), "axes": (1,)}, r"axis 1 is outside \[-1, 0\]"),
        (SLICE, {"x": spec(4)}, {"starts": (0, 0), "ends": (1, 1), "axes": (0, -1)}, "name an axis .* twice"),
        (CONCAT, {"x0": spec(2, 3), "x1": spec(2, 4)}, {"axis": 0}, "x1 is 2x4 and x0 is 2x3; only axis 0"),
        (CONCAT, {"x0": spec(2), "x1": spec(2, dtype=I64)}, {"axis": 0}, "x0 is f32, x1 is i64"),
        (CONCAT, {}, {"axis": 0}, "at least one operand"),
        (SPLIT, {"x": spec(5)}, {"sizes": (2, 2)}, r"add up to 4; axis 0 of 5 has 5"),
        (SPLIT, {"x": spec(5)}, {}, "num_outputs is 0; it needs sizes, or 1 to 1024"),
        (EXPAND, {"x": spec(3)}, {"shape": (2,)}, "3 and 2 do not broadcast"),
        (TILE, {"x": spec(3)}, {"repeats": (2, 2)}, "need 1 counts"),
        (RESHAPE, {"x": spec(6)}, {"shape": (4, -1)}, "6 elements do not divide by 4"),
        (RESHAPE, {"x": spec(6)}, {"shape": (-1, -1)}, "one -1 at most"),
        (RESHAPE, {"x": spec(6)}, {"shape": (4,)}, "4 has 4 elements and x has 6"),
        (RESHAPE, {"x": spec(6)}, {"shape": (6, 0)}, "0 at position 1"),
        (SQUEEZE, {"x": spec(1, 3)}, {"axes": (1,)}, "axis 1 of 1x3 is 3"),
        (GATHER, {"x": spec(3), "indices": spec(2)}, {}, "indices are f32"),
        (GATHER, {"x": spec(0), "indices": spec(2, dtype=I64)}, {}, "is empty"),
        (PAD, {"x": spec(3)}, {"pads": (3, 0), "mode": "reflect"}, "axis 0 of 3 has 3; reflect can pad 2, not 3"),
        (PAD, {"x": spec(3)}, {"pads": (-2, -2)}, "crop more"),
        (PAD, {"x": spec(3)}, {"pads": (1,)}, "1 pads for 1 axes"),
        (PAD, {"x": spec(3)}, {"pads": (1, 1), "mode": "mirror"}, "mode='mirror' is not one of"),
        (RANGE, {}, {"start": 0.0, "limit": 1.0, "delta": 0.0}, "delta other than 0"),
        (CONSTANT_OF_SHAPE, {}, {"shape": (-1,)}, "negative dimension"),
    ],
)
def test_illegal_calls_are_named(op: Op, specs: dict[str, TensorSpec], attrs: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        op.call(specs, attrs)  # type: ignore[arg-type]
