"""Matrix products by cooperative matrices: the launch of matmul_cooperative."""

from collections.abc import Mapping

from vkconv import shaders
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import linear_groups
from vkconv.ops.kernels.coopmat import EIGHT, CooperativeTile, blocks, tiles_by_rule
from vkconv.ops.kernels.gemm import Epilogue, Layout, constants, lies_in, push_block
from vkconv.program import Bind, Dispatch, positional
from vkconv.storage import Y_F32

PRODUCT = Shader(shaders.kernels.MATMUL_COOPERATIVE, DType.F16)


PRODUCT_TO_F32 = Shader(shaders.kernels.MATMUL_COOPERATIVE, DType.F16, (Y_F32,))


def cooperative_params(g: Layout, device: Device) -> Mapping[str, tuple[int, ...]]:
    """The tiles that `cooperative_product` may take, the rule's pick first."""
    return {"tile": tiles_by_rule(g.m, g.n, g.batches, device, depth=g.k)}


def cooperative_product(
    g: Layout, e: Epilogue, binds: tuple[Bind, ...], tile: CooperativeTile, device: Device, shader: Shader = PRODUCT
) -> Dispatch:
    """A product of 16-bit floats by tiles of cooperative matrices; bindings are a, b, bias and y, which may be scratch
    of f32 (`PRODUCT_TO_F32`)."""
    local = tile.local(device)
    groups = linear_groups(blocks(tile, g.m, g.n, g.batches) * local, local, device)
    a_wide = lies_in(EIGHT, (g.m, g.k), g.a, g.base[0], [a for _, a, _ in g.batch])
    b_wide = lies_in(EIGHT, (g.k, g.n), g.b, g.base[1], [b for _, _, b in g.batch])
    y_wide = shader is PRODUCT and lies_in(EIGHT, (g.m, g.n), g.y, g.base[2], [g.m * g.n]) and g.y[1] == 1
    whole = g.k > 0 and g.k % tile.depth == 0
    runs = not a_wide and 1 in g.a, not b_wide and 1 in g.b
    wide = a_wide, b_wide, y_wide, whole
    spec = (*constants(g, e), *tile.constants(device, g.a[0] == 1, g.b[0] == 1), *wide, *runs)
    iterations = ceil_div(g.k, tile.depth) * tile.depth
    return positional(shader, binds, groups, (local, 1, 1), push_block(g, e), spec, tile.shared_bytes, iterations)
