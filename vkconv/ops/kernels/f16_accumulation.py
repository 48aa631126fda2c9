"""Products and short sums in f16, at twice the rate of f32 where lanes of a GPU compute two halves at once.

Routes that do so are routes of f32 whose builder is given another `Arithmetic` (shaders/include/products.glsl):
products are accumulated in f16 up to a depth, and what they come to is added to f32. They are never taken unless
somebody asks: by name, or for all of a plan (`Options.half_sums`). What a result may be off by is told in
vkconv/ops/core/tolerance.py.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from vkconv.call import Call
from vkconv.core import DType
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core.requirements import FLOATS, ON_GPU, types_of
from vkconv.program import Program, Word
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params, Route
from vkconv.storage import HALF_MATH

# Products that are accumulated in f16 in a row. Root mean square error of sums of normal numbers, relative to the root
# mean square sum, in units of 2^-11 (test_half_sums.py); rounding a result to f16 is off by up to 1:
#   depth             8     16    32    all
#   64 products       1.0   1.4   1.8   2.6
#   576 products      1.0   1.3   1.8   7.1
#   4608 products     1.0   1.4   1.8   21
ACCUMULATION_DEPTH = 32

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


@dataclasses.dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a launch multiplies in. With a ``depth``, f16, in which it accumulates that many products at most."""

    depth: int = 0

    def variant(self, shader: Shader) -> Shader:
        """The variant of a shader that computes so."""
        return Shader(shader.kernel, DType.F16, (*shader.defines, HALF_MATH)) if self.depth else shader

    def shared_bytes(self, nbytes: int) -> int:
        """Of operands that take so many bytes in f32."""
        return nbytes // 2 if self.depth else nbytes

    def turns(self, products: int) -> int:
        """Turns of a loop that sum in f16, where each turn adds so many products to a sum."""
        return max(self.depth // products, 1)

    def constants(self, products: int) -> dict[str, Word]:
        """The specialization constants of a kernel with such a loop."""
        return {"F16_DEPTH": self.turns(products)} if self.depth else {}


F32, F16 = Arithmetic(), Arithmetic(ACCUMULATION_DEPTH)


class Builder(Protocol):
    """`Route.program` of a route that computes in f32 or f16."""

    def __call__(self, call: Call, device: Device, params: Params, arithmetic: Arithmetic = F32) -> Program: ...


def in_f16(
    base: Route,
    build: Builder,
    shaders: tuple[Shader, ...],
    depth: Callable[[Call], int],
    *,
    whole: tuple[str, int] | None = None,
    drops: tuple[Requirement, ...] = (),
    prefer: tuple[Requirement, ...] | None = None,
) -> Route:
    """A route of f32 with products in f16, at most ``depth(call)`` of them in a row, which ``build`` makes of
    ``shaders``. ``whole`` is the parameter of which a lane computes so many outputs at once. The requirements are those
    of the route, but for ``drops``; its preferences where no others are given.
    """
    in_one = Requirement.of(
        f"sums of at most {ACCUMULATION_DEPTH} products in f16",
        depth,
        lambda products: products <= ACCUMULATION_DEPTH,
        "{} products".format,
    )

    def params(call: Call, device: Device) -> Legal:
        legal: Mapping[str, tuple[int, ...]] = base.params(call, device)
        if whole is None:
            return legal
        name, count = whole
        return {**legal, name: tuple(size for size in legal[name] if size % count == 0)}

    return Route(
        f"{base.name}_f16",
        lambda call, device, params: build(call, device, params, F16),
        shaders,
        why=f"{base.name} with products in f16, which phones multiply at twice the rate of f32, and sums of up to "
        f"{ACCUMULATION_DEPTH} of them, which f32 then takes over: less exact than {base.name}, and never taken "
        "unasked",
        must=(_F16, _ARITHMETIC, *(need for need in base.must if need not in (FLOATS, *drops)), in_one),
        prefer=tuple(dict.fromkeys((ON_GPU, *(base.prefer if prefer is None else prefer)))),
        params=params,
        f16_depth=depth,
    )
