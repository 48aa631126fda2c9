"""The routes of conv2d_backward_data."""

from vkconv.ops.conv2d_backward_data_view import TRANSPOSED
from vkconv.ops.conv_transpose2d_gemm import TRANSPOSED_GEMM
from vkconv.ops.conv_transpose2d_routes import TRANSPOSED_DIRECT, TRANSPOSED_TILE
from vkconv.route import Route

ROUTES: tuple[Route, ...] = (
    TRANSPOSED.route(
        TRANSPOSED_GEMM,
        "col2im",
        "every element of dy meets every tap: a plain matrix product of the whole, with w as it lies, and a cheap sum "
        "of what reaches each element of dx",
        TRANSPOSED_GEMM.prefer,
    ),
    TRANSPOSED.route(
        TRANSPOSED_TILE,
        "phase",
        "elements of dx one stride apart are a dense convolution of dy by the taps that reach them: stride x stride of "
        "them, in register tiles, and nothing is dilated or scattered",
        (),
    ),
    TRANSPOSED.route(
        TRANSPOSED_DIRECT,
        "direct_gather",
        "one element of dx per invocation, which sums exactly the taps that reach it: takes every call of f32",
        (),
    ),
)
