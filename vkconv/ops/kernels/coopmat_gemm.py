"""Matrix products by cooperative matrices: the launch of matmul_cooperative."""

from collections.abc import Callable, Mapping

from vkconv import shaders
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.base import over_workgroups
from vkconv.ops.kernels.coopmat import EIGHT, SHIFTED, CooperativeTile, Product, tiles_by_rule
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm import GemmProblem, Operands, buffers, constants, push
from vkconv.program import Dispatch
from vkconv.storage import Y_F32

PRODUCT = Shader(shaders.kernels.MATMUL_COOPERATIVE, DType.F16)
PRODUCT_TO_F32 = Shader(shaders.kernels.MATMUL_COOPERATIVE, DType.F16, (Y_F32,))


def product_of(g: GemmProblem) -> Product:
    """The product as tiles of cooperative matrices make it."""
    form = SHIFTED if any(_in_runs(g).values()) else ""
    return Product(g.m, g.n, g.batches, g.k, form, g.elements)


def _in_runs(g: GemmProblem) -> Mapping[str, bool]:
    """The operands that are read as runs of neighbours which begin anywhere."""
    a_runs, b_runs = not g.a_in_vectors(EIGHT) and 1 in g.a, not g.b_in_vectors(EIGHT) and 1 in g.b
    return {"A_RUNS": a_runs, "B_RUNS": b_runs}


def _ends_whole(g: GemmProblem) -> Mapping[str, bool]:
    """The operands in runs of which the last element that is read ends a word of eight, whatever lies behind it."""
    a = g.base[0] + (g.m - 1) * g.a[0] + (g.k - 1) * g.a[1] + sum((extent - 1) * step for extent, step, _ in g.batch)
    b = g.base[1] + (g.k - 1) * g.b[0] + (g.n - 1) * g.b[1] + sum((extent - 1) * step for extent, _, step in g.batch)
    runs = _in_runs(g)
    ends = {"A": runs["A_RUNS"] and (a + 1) % EIGHT == 0, "B": runs["B_RUNS"] and (b + 1) % EIGHT == 0}
    return {f"{operand}_ENDS_WHOLE": whole for operand, whole in ends.items()}


def cooperative_params(
    g: GemmProblem, device: Device, takes: Callable[[CooperativeTile], bool] = lambda tile: True
) -> Mapping[str, tuple[str, ...]]:
    """The tiles that `cooperative_product` may take, of those that some use ``takes``, the rule's pick first."""
    return {"tile": tiles_by_rule(product_of(g), device, takes)}


def cooperative_product(
    g: GemmProblem, operands: Operands, e: Epilogue, tile: CooperativeTile, device: Device, shader: Shader = PRODUCT
) -> Dispatch:
    """A product of 16-bit floats by tiles of cooperative matrices; y may be scratch of f32 (`PRODUCT_TO_F32`)."""
    local = tile.local(device)
    a_wide, b_wide = g.a_in_vectors(EIGHT), g.b_in_vectors(EIGHT)
    y_wide = shader is PRODUCT and g.y_in_vectors(EIGHT)
    vectors = {"A_WIDE": a_wide, "B_WIDE": b_wide, "Y_WIDE": y_wide}
    runs = _in_runs(g)
    whole = {"WHOLE": g.k > 0 and g.k % tile.team_depth == 0}
    return Dispatch(
        e.variant(shader),
        buffers(operands, e),
        *over_workgroups(g.blocks(tile.rows, tile.columns), local, device),
        push(g, e),
        {
            **constants(g, e),
            **tile.constants(device, g.a[0] == 1, g.b[0] == 1),
            **vectors,
            **whole,
            **runs,
            **_ends_whole(g),
        },
        tile.workgroup_bytes(device),
        ceil_div(g.k, tile.depth) * tile.depth,
    )
