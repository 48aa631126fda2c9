"""Residuals of gemm_reduce and conv_reduce: where kernels find their numbers, what is refused, what stays as it was."""

import itertools

import numpy as np
import pytest
from graph_kit import made_up_device

from vkconv.core import GraphError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.addends import Lie
from vkconv.route import judge

PRODUCTS = [((5, 7), 0, (1,)), ((3, 5, 7), 2, (1,)), ((2, 3, 4, 5), 2, (3,)), ((3, 4, 5, 6), 1, (2, 3))]


def place(lie, outer, row, column):
    """shaders/include/addends.glsl."""
    line = column // lie.width
    over = outer // lie.run % lie.count * lie.outer
    return over + row * lie.row + line * lie.line + (column - line * lie.width) * lie.column


@pytest.mark.parametrize(("full", "row", "columns"), PRODUCTS)
def test_kernels_find_the_numbers_that_numpy_broadcasts(full, row, columns):
    others = [axis for axis in range(len(full)) if axis not in (row, *columns)]
    for there in itertools.product((False, True), repeat=len(full)):
        dims = tuple(n if is_there else 1 for n, is_there in zip(full, there, strict=True))
        want = np.broadcast_to(np.arange(np.prod(dims)).reshape(dims), full).transpose(*others, row, *columns)
        want = want.reshape(-1, full[row], int(np.prod([full[axis] for axis in columns])))
        lie = Lie.of(dims, full, row, columns)
        outer, rows, cols = np.indices(want.shape)
        np.testing.assert_array_equal(place(lie, outer, rows, cols), want, str(dims))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gemm_reduce:a=5x3,b=3x7,residual=5x2", "residual is 5x2:f32, and the product that it is added to 5x7:f32"),
        ("gemm_reduce:a=5x3,b=3x7,residual=2x5x7", "residual is 2x5x7:f32"),
        ("gemm_reduce:a=5x3,b=3x7,residual2=5x7", "a residual2 and no residual"),
        ("gemm_reduce:a=2x3x2x5x3,b=3x7,residual=2x1x2x1x7", "repeats over batches between others, of 2x3x2"),
        ("gemm_reduce:a=5x3:f16,b=3x7:f16,residual=7:f32", "residual is 7:f32"),
        ("conv_reduce:x=1x3x5x5,w=4x3x1x1,residual=4x1x1", "give it four dimensions"),
        ("conv_reduce:x=1x3x5x5,w=4x3x1x1,residual=1x3x1x1", "aligned at the right"),
    ],
)
def test_what_does_not_broadcast_is_refused(text, said):
    with pytest.raises(GraphError) as caught:
        parse_call(text, OPS)
    assert said in str(caught.value).replace(" f32", ":f32")


def test_a_residual_as_large_as_the_product_is_added_as_before():
    device = load_device("h200")
    (route,) = (route for route in OPS["gemm_reduce"].routes if route.name == "fused_partials")
    for residuals, broadcast in (("residual=1x5x7", False), ("residual=5x7", False), ("residual=7", True)):
        call = parse_call(f"gemm_reduce:a=1x5x3,b=3x7,{residuals}", OPS)
        (step, *_) = route.build(call, device).steps
        assert (("BROADCAST", "") in step.shader.defines) is broadcast, residuals


def test_residuals_and_a_product_that_is_kept_need_a_buffer_each():
    (route,) = (route for route in OPS["gemm_reduce"].routes if route.name == "fused_partials")
    for text, buffers in (("residual=5x7", 5), ("residual=7", 6), ("residual=5x7,residual2=7,product=1", 7)):
        call = parse_call(f"gemm_reduce:a=5x3,b=3x7,{text}", OPS)
        for limit in (buffers - 1, buffers):
            device = made_up_device(maxPerStageDescriptorStorageBuffers=limit)
            assert judge(route, call, device).allowed is (limit == buffers), (text, limit)
