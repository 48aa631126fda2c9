"""Floats of 16 bits: what becomes of a program that was written for f32 where a call's floats are f16 or bf16.

Routes are written once, for f32. A call in f16 or bf16 gets the same launches in other *forms* of their shaders
(shaders/include/storage16.glsl): operands, outputs and those buffers of the program that hold elements of the call
(`Program.elements`) take two bytes an element, all arithmetic and all other scratch stay f32. Devices without 16-bit
storage take forms that read and write words of two elements.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from vkconv.core import DType
from vkconv.device import Device
from vkconv.kernel import Shader
from vkconv.program import Dispatch, Program

HALVES = (DType.F16, DType.BF16)

# The feature by which 16-bit elements are read and written by themselves.
NATIVE = ("VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess")
PACKED = ("PACKED", "")
# What multiplies in f16, shaders/include/products.glsl: declared as of f16, since there is no other type for it.
HALF_MATH = ("HALF_MATH", "")
X_F32, Y_F32 = ("X_F32", ""), ("Y_F32", "")
# Shaders whose first operand may be scratch, and those whose output may: X_ELEM and Y_ELEM of common.glsl.
X_SCRATCH = frozenset({"reduce", "reduce_columns", "reduce_rows", "resample", "scatter_strided"})
Y_SCRATCH = frozenset(
    {
        "backward_weight_gemm",
        "backward_weight_narrow",
        "backward_weight_rows",
        "conv2d_depthwise",
        "conv2d_direct",
        "conv2d_gemm",
        "conv2d_pointwise",
        "conv2d_subgroup",
        "conv2d_tile",
        "conv_transpose2d_phases",
        "matmul_narrow",
        "matmul_register",
        "matmul_shared",
        "matmul_subgroup",
        "reduce",
        "reduce_columns",
        "reduce_combine",
        "reduce_rows",
        "resample",
        "sum_splits",
        "winograd_output",
    }
)
# Shaders that have matrices of 16-bit floats: there is none of f32, and routes name those of f16.
MATRICES = frozenset(
    {"backward_weight_cooperative", "conv2d_cooperative", "conv2d_held", "held_matrices", "matmul_cooperative"}
)
# Shaders of words that only move them, and so take any two bytes; the others of words make or look at floats.
MOVES = frozenset({"one_hot", "reverse_sequence", "scatter_strided", "strided_copy", "trilu", "where"})


def stores_natively(device: Device) -> bool:
    """Whether the device reads and writes 16-bit elements of a buffer by themselves."""
    return device.feature(*NATIVE)


def _is_written_once(shader: Shader) -> bool:
    """Whether it stands for all its forms: of f32 or of words, or with products in f16."""
    return shader.dtype in (DType.F32, DType.U32) or HALF_MATH in shader.defines


def _may(shader: Shader, stems: frozenset[str]) -> bool:
    return shader.stem in stems and shader.dtype is not DType.U32


def _types(shader: Shader) -> tuple[DType, ...]:
    if shader.dtype is DType.U32 and shader.stem in MOVES:
        return (DType.U16,)
    return (DType.F16,) if HALF_MATH in shader.defines else HALVES


def _form(shader: Shader, dtype: DType, packed: bool, *defines: tuple[str, str]) -> Shader:
    dtype = dtype if dtype in _types(shader) else _types(shader)[0]
    return Shader(shader.kernel, dtype, (*shader.defines, *defines, *([PACKED] if packed else [])))


def forms(shader: Shader) -> Iterator[Shader]:
    """Every form that a shader of f32, of words, of products in f16 or of MATRICES may take for calls of 16-bit
    floats."""
    if shader.stem in MATRICES:
        yield from (dataclasses.replace(shader, dtype=dtype) for dtype in HALVES)
    if not _is_written_once(shader):
        return
    xs = ((), (X_F32,)) if _may(shader, X_SCRATCH) else ((),)
    ys = ((), (Y_F32,)) if _may(shader, Y_SCRATCH) else ((),)
    for dtype in _types(shader):
        for packed in (False, True):
            yield from (_form(shader, dtype, packed, *x, *y) for x in xs for y in ys if not (x and y))


def stored(program: Program, types: Mapping[str, DType], dtype: DType, device: Device) -> Program:
    """The program, written for f32, for operands and outputs of these element types, where floats are ``dtype``."""
    packed = not stores_natively(device)
    wide = {name for name, known in types.items() if known not in HALVES}

    def is_half(buffer: str) -> bool:
        return buffer in program.elements or (buffer in types and buffer not in wide)

    def form(dispatch: Dispatch) -> Dispatch:
        shader = dispatch.shader
        if shader.stem in MATRICES:
            return dataclasses.replace(dispatch, shader=dataclasses.replace(shader, dtype=dtype))
        halves = [is_half(bind.buffer) for bind in dispatch.binds]
        if not _is_written_once(shader) or not any(halves):
            return dispatch
        written = [half for half, bind in zip(halves, dispatch.binds, strict=True) if bind.access != "r"]
        scratch = [X_F32] if _may(shader, X_SCRATCH) and not halves[0] else []
        scratch += [Y_F32] if _may(shader, Y_SCRATCH) and not any(written) else []
        return dataclasses.replace(dispatch, shader=_form(shader, dtype, packed, *scratch))

    def sizes(of: Mapping[str, int]) -> dict[str, int]:
        return {name: nbytes // 4 * dtype.nbytes if name in program.elements else nbytes for name, nbytes in of.items()}

    steps, prepack = (tuple(map(form, dispatches)) for dispatches in (program.steps, program.prepack))
    return Program(steps, prepack, sizes(program.packed), sizes(program.scratch), program.elements)
