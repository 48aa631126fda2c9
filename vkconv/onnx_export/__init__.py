"""Graphs as ONNX models: what `vkconv convert m.vkc m.onnx` writes, and any ONNX tool opens. Needs ``onnx``."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from vkconv.core import UnsupportedError, UsageError
from vkconv.graph.ir import Graph

if TYPE_CHECKING:
    import onnx

__all__ = ["to_onnx"]


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """The graph as a model that onnx's checker accepts, shapes and types inferred throughout.

    Names of inputs, outputs and values stay; a node that is several in ONNX (a convolution with its activation) gives
    its name to the first. Imported again, the model computes the same bytes. Raises UnsupportedError listing every
    node that ONNX has no equivalent for, and what onnx's checker says where it refuses the result; UsageError where
    the ``onnx`` package is missing.
    """
    if importlib.util.find_spec("onnx") is None:
        raise UsageError("writing ONNX needs the onnx package, which is not installed; run: pip install 'vkconv[onnx]'")
    import onnx.checker
    import onnx.shape_inference

    from vkconv.onnx_export.exporter import export

    model = export(graph)
    try:
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise UnsupportedError(f"graph {graph.name!r} as ONNX: onnx refuses it: {error}") from None
