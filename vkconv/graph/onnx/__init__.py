"""ONNX models as graphs. Needs the ``onnx`` package; nothing outside this package imports it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vkconv.core import UsageError
from vkconv.graph.ir import Graph

if TYPE_CHECKING:
    import onnx

# What errors call a model that came from no file.
GIVEN = "the given model"

__all__ = ["load_onnx", "load_onnx_bytes", "load_onnx_proto"]


def load_onnx(path: str | Path, *, newer_opset: bool = False, f64_as_f32: bool = False) -> Graph:
    """The graph of an ONNX model file (default domain, opset 7 or newer, floats of float32, float16 or bfloat16).

    The result does not depend on input shapes: dimensions the model leaves open become names, and nodes that
    compute shapes stay nodes. ``metadata`` holds the model's own properties under their own keys, and
    ``onnx.source``, ``onnx.producer``, ``onnx.opset``. ``newer_opset`` takes models of opsets that came after the
    newest known one, with a warning; ``f64_as_f32`` takes 64-bit floats for 32-bit ones, inputs and outputs too.

    Raises ModelError for a file that is no readable ONNX model, UnsupportedError listing every node that
    vkconv has no equivalent for, UsageError where the ``onnx`` package is missing.
    """
    _need_onnx(str(path))
    from vkconv.graph.onnx.importer import import_model

    return import_model(Path(path), newer_opset, f64_as_f32)


def load_onnx_bytes(data: bytes, name: str = GIVEN, *, newer_opset: bool = False, f64_as_f32: bool = False) -> Graph:
    """The graph of what an ONNX file holds, as `load_onnx` gives that of the file; errors call it ``name``, and
    external data lies beside that."""
    _need_onnx(name)
    from vkconv.graph.onnx.importer import import_bytes

    return import_bytes(data, name, newer_opset, f64_as_f32)


def _need_onnx(name: str) -> None:
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{name}: reading ONNX needs the onnx package, which is not installed; run: pip install 'vkconv[onnx]'"
        ) from None


def load_onnx_proto(model: onnx.ModelProto, name: str = GIVEN) -> Graph:
    """The graph of a model in memory, as `load_onnx` gives that of a file; errors call it ``name``, and external data
    lies beside that.

    What onnx computes in C++ runs in this process, and that ends the process for some damaged models: check the model
    with ``onnx.checker`` first.
    """
    from vkconv.graph.onnx.importer import import_proto

    return import_proto(model, name)
