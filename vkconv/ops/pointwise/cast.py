"""cast: another element type."""

import numpy as np

from vkconv import shaders
from vkconv.call import Call
from vkconv.core import DType, ceil_div
from vkconv.device import Device
from vkconv.graph.ir import TensorSpec
from vkconv.kernel import Shader
from vkconv.ops.core import shapes
from vkconv.ops.core.base import Arrays, Attr, Attrs, Op, Operand, Outputs, Resolved, Specs
from vkconv.ops.kernels.strided import dispatch_each, local_params
from vkconv.program import Program
from vkconv.requirement import Requirement
from vkconv.route import Params, Route

CAST_SHADER = Shader(shaders.pointwise.CAST, DType.U32)
KINDS = (
    DType.F32,
    DType.I32,
    DType.U32,
    DType.BOOL,
    DType.I64,
    DType.I8,
    DType.U8,
    DType.F16,
    DType.BF16,
    DType.I16,
    DType.U16,
)  # index is the shader's SOURCE and TARGET


def _resolve(specs: Specs, attrs: Attrs) -> Resolved:
    x, to = shapes.operand(specs, "x", "cast"), shapes.element_type("cast", attrs, "to")
    return {"to": str(to)}, (TensorSpec(x.shape, to),)


def _program(call: Call, device: Device, params: Params) -> Program:
    source, target = call.specs["x"], call.outputs["y"]
    push, kinds = {"count": target.size}, {"SOURCE": KINDS.index(source.dtype), "TARGET": KINDS.index(target.dtype)}
    return Program((dispatch_each(CAST_SHADER, ceil_div(target.size, 4), device, params, push, kinds),))


def _reference(call: Call, arrays: Arrays) -> Outputs:
    x, dtype = shapes.given(arrays, "x"), call.outputs["y"].dtype.numpy
    if x.dtype.kind != "f" or dtype.kind not in "iu":
        with np.errstate(all="ignore"):
            return [x.astype(dtype)]
    limits = np.iinfo(dtype.type)  # type: ignore[type-var]
    low, high = int(limits.min), int(limits.max)
    wide = x.astype(np.float64)  # f16 holds neither
    inside = (wide > low) & (wide < float(high))
    y = np.where(inside, x, 0).astype(dtype)
    y[wide >= float(high)] = high
    y[wide <= float(low)] = low
    return [y]


KNOWN = Requirement.of(
    f"element types among {', '.join(KINDS)}",
    lambda call: [spec.dtype for spec in call.specs.values()],
    lambda dtypes: {*dtypes} <= {*KINDS},
    " to ".join,
)

CAST = Op(
    "cast",
    (Operand("x"),),
    _resolve,
    _reference,
    attrs=(Attr("to", "to", str),),
    routes=(
        Route(
            "words",
            _program,
            (CAST_SHADER,),
            "one pass, four elements per invocation: one word of bytes, two of 16 bits",
            must=(KNOWN,),
            params=local_params,
        ),
    ),
    cases=(
        "cast:x=3x67,to=i32",
        "cast:x=3x67,to=bool",
        "cast:x=5,to=u32",
        "cast:x=3x67:i32,to=f32",
        "cast:x=3x67:i32,to=bool",
        "cast:x=3x67:bool,to=f32",
        "cast:x=1x2x3:bool,to=i32",
        "cast:x=scalar,to=f32",
        "cast:x=3x67,to=i64",
        "cast:x=5x13:i64,to=f32",
        "cast:x=67:i64,to=i32",
        "cast:x=67:i32,to=i64",
        "cast:x=31:i64,to=bool",
        "cast:x=31:bool,to=i64",
        "cast:x=5:i64,to=i64",
        "cast:x=3x67,to=u8",
        "cast:x=67:i32,to=i8",
        "cast:x=31:i64,to=u8",
        "cast:x=67:i8,to=f32",
        "cast:x=67:u8,to=i32",
        "cast:x=31:i8,to=i64",
        "cast:x=31:i8,to=u8",
        "cast:x=31:u8,to=bool",
        "cast:x=31:bool,to=i8",
        "cast:x=3x67,to=f16",
        "cast:x=67:f16,to=f32",
        "cast:x=3x67,to=bf16",
        "cast:x=33:bf16,to=f32",
        "cast:x=33:f16,to=bf16",
        "cast:x=3x67:f16,to=i32",
        "cast:x=35:i64,to=f16",
        "cast:x=31:bool,to=bf16",
        "cast:x=31:bf16,to=u8",
        "cast:x=67,to=i16",
        "cast:x=3x67,to=u16",
        "cast:x=131:i32,to=i16",
        "cast:x=67:i16,to=f32",
        "cast:x=67:i16,to=i64",
        "cast:x=33:u16,to=i32",
        "cast:x=35:i16,to=u8",
        "cast:x=35:u16,to=f16",
        "cast:x=31:u16,to=bool",
        "cast:x=31:i64,to=u16",
        "cast:x=31:u32,to=i64",
    ),
    doc="x as element type to: floats to integers truncate, saturate at the ends and take NaN for 0; bool is x != 0.",
)
