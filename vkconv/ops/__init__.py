"""Every operator of vkconv, by name: an explicit sorted list, so that grep finds each one."""

from collections.abc import Mapping

from vkconv.kernel import Shader
from vkconv.ops.conv.col2im import COL2IM
from vkconv.ops.conv.deform_conv2d import DEFORM_CONV2D
from vkconv.ops.core.base import Op
from vkconv.ops.fused.attention import ATTENTION
from vkconv.ops.fused.gemm_reduce import GEMM_REDUCE
from vkconv.ops.fused.inverted_residual import INVERTED_RESIDUAL
from vkconv.ops.fused.prologue_conv2d import PROLOGUE_CONV2D
from vkconv.ops.fused.separable_conv2d import SEPARABLE_CONV2D
from vkconv.ops.fused.squeeze_excite import SQUEEZE_EXCITE
from vkconv.ops.kernels.rooflines import SHADERS as FLOOR_SHADERS
from vkconv.ops.laid_out import LAID_OUT
from vkconv.ops.matmul.nbits import MATMUL_NBITS
from vkconv.ops.matmul.op import MATMUL
from vkconv.ops.movement.alias import BITCAST, DROPOUT, FLATTEN, IDENTITY, MERGE, RESHAPE, SQUEEZE, UNSQUEEZE
from vkconv.ops.movement.blocks import DEPTH_TO_SPACE, SPACE_TO_DEPTH
from vkconv.ops.movement.gather import GATHER
from vkconv.ops.movement.gather_elements import GATHER_ELEMENTS, GATHER_ND
from vkconv.ops.movement.host import CONSTANT_OF_SHAPE, EYE_LIKE, RANGE, SHAPE, SIZE
from vkconv.ops.movement.layout import CONCAT, EXPAND, SLICE, SPLIT, TILE, TRANSPOSE
from vkconv.ops.movement.nonzero import NONZERO
from vkconv.ops.movement.one_hot import ONE_HOT
from vkconv.ops.movement.pad import CENTER_CROP_PAD, PAD
from vkconv.ops.movement.reverse_sequence import REVERSE_SEQUENCE
from vkconv.ops.movement.scatter_elements import SCATTER_ELEMENTS, SCATTER_ND
from vkconv.ops.movement.scatter_strided import SCATTER_STRIDED
from vkconv.ops.movement.tensor_scatter import TENSOR_SCATTER
from vkconv.ops.movement.trilu import TRILU
from vkconv.ops.norm.batch import BATCH_NORM, BATCH_NORM_TRAINING
from vkconv.ops.norm.hardmax import HARDMAX
from vkconv.ops.norm.normalize import GROUP_NORM, INSTANCE_NORM, LAYER_NORM, RMS_NORM
from vkconv.ops.norm.softmax import SOFTMAX
from vkconv.ops.pointwise.binary import BINARY_OPS
from vkconv.ops.pointwise.cast import CAST
from vkconv.ops.pointwise.chain import CHAIN
from vkconv.ops.pointwise.logic import LOGIC_OPS
from vkconv.ops.pointwise.select import COMPARE_OPS, WHERE_OP
from vkconv.ops.pointwise.unary import UNARY_OPS
from vkconv.ops.quant.integer_conv import CONV_INTEGER, QLINEAR_CONV
from vkconv.ops.quant.integer_matmul import MATMUL_INTEGER, QLINEAR_MATMUL
from vkconv.ops.quant.quantize import DEQUANTIZE_LINEAR, DYNAMIC_QUANTIZE_LINEAR, QUANTIZE_LINEAR
from vkconv.ops.recurrence.op import RECURRENCE
from vkconv.ops.reduce.arg_reduce import ARG_REDUCE
from vkconv.ops.reduce.cumulative import CUMULATIVE
from vkconv.ops.reduce.op import REDUCE
from vkconv.ops.reduce.topk import TOPK
from vkconv.ops.spatial.grid_sample import AFFINE_GRID, GRID_SAMPLE
from vkconv.ops.spatial.non_max_suppression import NON_MAX_SUPPRESSION
from vkconv.ops.spatial.pool2d_argmax import POOL2D_ARGMAX
from vkconv.ops.spatial.resize import RESIZE
from vkconv.ops.spatial.roi_align import ROI_ALIGN
from vkconv.storage import PACKED

__all__ = ["OPS", "all_shaders"]

_ALL: tuple[Op, ...] = (
    AFFINE_GRID,
    ARG_REDUCE,
    ATTENTION,
    BATCH_NORM,
    BATCH_NORM_TRAINING,
    BITCAST,
    CAST,
    CENTER_CROP_PAD,
    CHAIN,
    COL2IM,
    CONCAT,
    CONSTANT_OF_SHAPE,
    CONV_INTEGER,
    CUMULATIVE,
    DEFORM_CONV2D,
    DEPTH_TO_SPACE,
    DEQUANTIZE_LINEAR,
    DROPOUT,
    DYNAMIC_QUANTIZE_LINEAR,
    EXPAND,
    EYE_LIKE,
    FLATTEN,
    GATHER,
    GATHER_ELEMENTS,
    GATHER_ND,
    GEMM_REDUCE,
    GRID_SAMPLE,
    GROUP_NORM,
    HARDMAX,
    IDENTITY,
    INSTANCE_NORM,
    INVERTED_RESIDUAL,
    LAYER_NORM,
    MATMUL,
    MATMUL_INTEGER,
    MATMUL_NBITS,
    MERGE,
    NONZERO,
    NON_MAX_SUPPRESSION,
    ONE_HOT,
    PAD,
    POOL2D_ARGMAX,
    PROLOGUE_CONV2D,
    QLINEAR_CONV,
    QLINEAR_MATMUL,
    QUANTIZE_LINEAR,
    RANGE,
    RECURRENCE,
    REDUCE,
    RESHAPE,
    RESIZE,
    REVERSE_SEQUENCE,
    RMS_NORM,
    ROI_ALIGN,
    SCATTER_ELEMENTS,
    SCATTER_ND,
    SCATTER_STRIDED,
    SEPARABLE_CONV2D,
    SHAPE,
    SIZE,
    SLICE,
    SOFTMAX,
    SPACE_TO_DEPTH,
    SPLIT,
    SQUEEZE,
    SQUEEZE_EXCITE,
    TENSOR_SCATTER,
    TILE,
    TOPK,
    TRANSPOSE,
    TRILU,
    UNSQUEEZE,
    WHERE_OP,
    *BINARY_OPS,
    *COMPARE_OPS,
    *LOGIC_OPS,
    *UNARY_OPS,
)

_BY_NAME = {op.name: op for op in (*_ALL, *LAID_OUT)}
OPS: Mapping[str, Op] = {name: _BY_NAME[name] for name in sorted(_BY_NAME)}


def all_shaders() -> tuple[Shader, ...]:
    """Every shader variant to ship, each once, in order of their keys: what any route declares or calibration uses.
    Forms for devices without 16-bit storage are left to be compiled there: few are without, and they are 300."""
    forms = (shader for op in OPS.values() for route in op.routes for shader in route.forms)
    declared = (shader for shader in forms if PACKED not in shader.defines)
    return tuple(sorted(dict.fromkeys((*declared, *FLOOR_SHADERS)), key=lambda shader: shader.key))
