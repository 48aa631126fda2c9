"""Functions of one variable, elementwise: one op per row of the activation table, all on one shader."""

from collections.abc import Callable, Mapping

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import Array, DType, GraphError
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.activation import ACTIVATIONS, apply, check_numbers
from vkconv.ops.core.base import F64, Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.core.requirements import FLOATS, NUMBERS
from vkconv.ops.kernels.strided import dispatch_each, lanes, walk_params
from vkconv.program import Program
from vkconv.route import Params, Route

UNARY = {dtype: Shader(shaders.pointwise.UNARY, dtype) for dtype in (DType.F32, DType.I32, DType.I64)}
# The functions that integers have too. Those of the shader go by their ids; other widths fold on the host.
INTEGERS: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "relu": lambda x: np.maximum(x, 0),
    "sign": np.sign,
}

# Defaults of the float parameters: ONNX's for each operator.
_DEFAULTS: Mapping[str, tuple[float, ...]] = {
    "clip": (-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max)),
    "hard_sigmoid": (0.2, 0.5),
    "leaky_relu": (0.01,),
    "elu": (1.0,),
    "selu": (1.6732632423543772, 1.0507009873554805),
    "celu": (1.0,),
    "thresholded_relu": (1.0,),
    "shrink": (0.5, 0.0),
}

# Cases beside the common ones: where a function has branches that small values do not reach.
_CASES: Mapping[str, tuple[str, ...]] = {
    "clip": ("clip:x=7x11,a=-1,b=0.5", "clip:x=5,a=2,b=1"),
    "leaky_relu": ("leaky_relu:x=7x11,a=0.3",),
    "hard_sigmoid": ("hard_sigmoid:x=7x11,a=0.16666667,b=0.5",),
    "elu": ("elu:x=7x11,a=0.5",),
    "celu": ("celu:x=7x11,a=-0.5", "celu:x=7x11,a=3e38"),
    "shrink": ("shrink:x=7x11,a=1.5,b=1.25",),
    "relu": ("relu:x=scalar", "relu:x=1x3x5x7", "relu:x=70000"),
}

_WIDE = (DType.I32, DType.I64)


def _params(attrs: Mapping[str, object]) -> tuple[float, float]:
    a, b = (float(attrs.get(k, 0.0)) for k in ("a", "b"))  # type: ignore[arg-type]
    return a, b


def _program(call: Call, device: Device, params: Params) -> Program:
    count = call.outputs["y"].size
    spread, (a, b) = lanes(1, count, params), _params(call.attrs)
    shader = UNARY[call.outputs["y"].dtype]
    push = shader.taking({"count": count, "chunk": spread.chunk, "a": a, "b": b})
    constants = {"FUNCTION": ACTIVATIONS[call.op].id, "ITEMS": spread.items}
    return Program((dispatch_each(shader, spread.invocations, device, params, push, constants),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x = shapes.given(arrays, "x")
    if x.dtype.kind in "iu":
        return [INTEGERS[call.op](x)]
    return [apply(call.op, x.astype(np.float64), *_params(call.attrs))]


def _magnitude(call: Call, arrays: Arrays, reference: F64) -> F64:
    cancelled, size = ACTIVATIONS[call.op].cancelled, np.abs(reference)
    if cancelled is None:
        return size
    return size + cancelled(shapes.given(arrays, "x").astype(np.float64), *_params(call.attrs))


def _op(name: str) -> Op:
    def resolve(specs: Specs, attrs: Attrs) -> Resolved:
        x = shapes.operand(specs, "x", name)
        if not x.dtype.is_float and (name not in INTEGERS or x.dtype is DType.BOOL):
            raise GraphError(f"{name}: x is {x.dtype}; it takes a float type, cast first")
        check_numbers(name, *attrs.values())
        return {k: float(v) for k, v in attrs.items() if not isinstance(v, tuple)}, (x,)

    params = ACTIVATIONS[name].params
    attrs = tuple(
        Attr(key, key, float, default) for key, default in zip("ab", _DEFAULTS[name] if params else (), strict=False)
    )
    meaning = "".join(f"; {key} is {param}" for key, param in zip("ab", params, strict=False))
    return Op(
        name,
        (Operand("x"),),
        resolve,
        _reference,
        attrs=attrs,
        routes=(
            Route(
                "elementwise",
                _program,
                tuple(UNARY.values()) if name in INTEGERS else (UNARY[DType.F32],),
                "one pass, several elements per invocation, any shape",
                (NUMBERS if name in INTEGERS else FLOATS,),
                params=walk_params,
            ),
        ),
        flops=lambda call: call.outputs["y"].size,
        magnitude=_magnitude,
        cases=(f"{name}:x=3x67", *_CASES.get(name, ()), *(f"{name}:x=3x67:{t}" for t in _WIDE if name in INTEGERS)),
        doc=f"y = {name}(x) elementwise{meaning}.",
    )


UNARY_OPS: tuple[Op, ...] = tuple(_op(name) for name in ACTIVATIONS if name != "none")
