"""The routes of conv2d_backward_data; which is taken by rule is in conv2d_backward_data_rules.py."""

import dataclasses

from vkconv.ops.conv.dgrad.as_conv import (
    FILL_SCATTER_CONV,
    FLIPPED_CONV,
    FLIPPED_COOPERATIVE,
    FLIPPED_WINOGRAD,
    GATHER_SCATTER_CONV,
    SWAP_1X1,
    SWAP_COOPERATIVE,
    SWAP_HELD,
)
from vkconv.ops.conv.dgrad.as_transposed import TRANSPOSED
from vkconv.ops.conv.dgrad.rules import taken
from vkconv.ops.conv.transpose.blocks import TRANSPOSED_BLOCKS, TRANSPOSED_PHASES
from vkconv.ops.conv.transpose.gemm import TRANSPOSED_GEMM
from vkconv.ops.conv.transpose.routes import TRANSPOSED_DIRECT, TRANSPOSED_TILE
from vkconv.route import Route

_ROUTES: tuple[Route, ...] = (
    FLIPPED_WINOGRAD,
    FLIPPED_CONV,
    SWAP_1X1,
    TRANSPOSED.route(
        TRANSPOSED_BLOCKS,
        "phase_blocks",
        "an invocation makes whole blocks of stride x stride elements of dx: an element of dy that it loads meets "
        "every tap, each at its place of a block, and rows of dx are written as they lie",
    ),
    TRANSPOSED.route(
        TRANSPOSED_PHASES,
        "phase_gemm",
        "elements of dx one stride apart are a dense convolution of dy by the taps that reach them: tiles of its "
        "matrix product in shared memory, stride x stride of them in one launch, nothing dilated or scattered",
    ),
    TRANSPOSED.route(
        TRANSPOSED_TILE,
        "phase",
        "elements of dx one stride apart are a dense convolution of dy by the taps that reach them, in register tiles, "
        "and nothing is dilated or scattered",
    ),
    TRANSPOSED.route(
        TRANSPOSED_GEMM,
        "col2im",
        "every element of dy meets every tap: a plain matrix product of the whole, with w as it lies, and a cheap sum "
        "of what reaches each element of dx",
    ),
    GATHER_SCATTER_CONV,
    FILL_SCATTER_CONV,
)
ROUTES: tuple[Route, ...] = (
    FLIPPED_COOPERATIVE,
    SWAP_HELD,
    SWAP_COOPERATIVE,
    *(dataclasses.replace(route, prefer=(taken(route.name),)) for route in _ROUTES),
    TRANSPOSED.route(
        TRANSPOSED_DIRECT,
        "direct_gather",
        "one element of dx per invocation, which sums exactly the taps that reach it: takes every call of floats",
    ),
)
