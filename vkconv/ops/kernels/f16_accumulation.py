"""Products and short sums in f16, at twice the rate of f32 where lanes of a GPU compute two halves at once.

Routes that do so are routes of f32 with other shaders (shaders/include/products.glsl): products are summed in f16 over
a bounded *chain* of them, and what a chain comes to is added to f32. They are never taken unless somebody asks: by
name, or for all of a plan (`Options.half_sums`). What a result may be off by is told in vkconv/ops/core/tolerance.py.
"""

import dataclasses
from collections.abc import Callable, Mapping

from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.requirements import FLOATS, ON_GPU, types_of
from vkconv.program import Dispatch, Program
from vkconv.route import Params, Requirement, Route
from vkconv.storage import HALF_MATH

# Products that are summed in f16 in a row. The root mean square error of sums of 64, 576 and 4608 products of normal
# numbers, relative to the root mean square sum and in units of 2^-11 (test_half_sums.py): chains of 8 1.0
# 1.0 1.0, of 16 1.4 1.3 1.4, of 32 1.8 1.8 1.8, one chain 2.6 7.1 21. Rounding a result to f16 is off by up to 1.
LONGEST_CHAIN = 32

_FLOAT16 = ("VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16")
_F16 = Requirement(
    "f16 elements",
    lambda call, device: {spec.dtype for spec in call.specs.values()} == {DType.F16},
    lambda call, device: types_of(call),
    halves=True,
)
_ARITHMETIC = Requirement(
    "arithmetic in f16 (shaderFloat16)",
    lambda call, device: device.feature(*_FLOAT16),
    lambda call, device: "not there",
)


def links(products: int) -> int:
    """Turns of a loop that make a chain, where each turn adds so many products to a sum."""
    return max(LONGEST_CHAIN // products, 1)


def in_half(
    base: Route,
    chain: Callable[[Call], int],
    stem: str,
    turns: Callable[[Call, Params], int] | None = None,
    *,
    whole: tuple[str, int] | None = None,
    drops: tuple[Requirement, ...] = (),
    prefer: tuple[Requirement, ...] | None = None,
) -> Route:
    """A route of f32 with products in f16, chains of at most ``chain(call)`` of them.

    ``stem`` is the shader that multiplies, ``turns`` how many turns of its loop make a chain, None where it has no
    loop. ``whole`` is the parameter of which a lane computes so many outputs at once. The needs are those of the route,
    but for ``drops``; its preferences where no others are given.
    """
    in_one = Requirement(
        f"sums of at most {LONGEST_CHAIN} products in f16",
        lambda call, device: chain(call) <= LONGEST_CHAIN,
        lambda call, device: f"{chain(call)} products",
    )

    def multiplying(step: Dispatch, call: Call, params: Params) -> Dispatch:
        if step.shader.stem != stem:
            return step
        # Operands in shared memory take two bytes each.
        step = dataclasses.replace(step, shader=_in_half(step.shader), shared_bytes=step.shared_bytes // 2)
        return (
            step
            if turns is None
            else dataclasses.replace(step, constants={**step.constants, "LINKS": turns(call, params)})
        )

    def program(call: Call, device: Device, params: Params) -> Program:
        made = base.program(call, device, params)
        assert isinstance(made, Program)
        return dataclasses.replace(made, steps=tuple(multiplying(step, call, params) for step in made.steps))

    def params(call: Call, device: Device) -> Mapping[str, tuple[int, ...]]:
        legal = dict(base.params(call, device))
        if whole is not None:
            name, count = whole
            legal[name] = tuple(size for size in legal[name] if size % count == 0)
        return legal

    return Route(
        f"{base.name}_f16",
        program,
        tuple(_in_half(shader) if shader.stem == stem else shader for shader in base.shaders),
        why=f"{base.name} with products in f16, which phones multiply at twice the rate of f32, and sums of up to "
        f"{LONGEST_CHAIN} of them, which f32 then takes over: less exact than {base.name}, and never taken unasked",
        must=(_F16, _ARITHMETIC, *(need for need in base.must if need not in (FLOATS, *drops)), in_one),
        prefer=tuple(dict.fromkeys((ON_GPU, *(base.prefer if prefer is None else prefer)))),
        params=params,
        chain=chain,
    )


def _in_half(shader: Shader) -> Shader:
    return Shader(shader.kernel, DType.F16, (*shader.defines, HALF_MATH))
