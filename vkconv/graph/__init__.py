"""Graphs as data: the IR, the ``.vkc`` file format and the ONNX importer."""

from pathlib import Path

from vkconv.core import ModelError
from vkconv.graph.aten import is_exported_program, load_exported, load_pt2
from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec
from vkconv.graph.tflite import is_tflite, load_tflite, load_tflite_bytes

__all__ = ["SUFFIXES", "AttrValue", "Dim", "Graph", "Node", "TensorSpec", "load_model"]

SUFFIXES = (".vkc", ".onnx", ".tflite", ".pt2")
"""How the names of files end that hold models."""


def load_model(source: object, *, newer_opset: bool = False) -> Graph:
    """The graph of a model: the path of a ``.vkc``, ``.onnx``, ``.tflite`` or ``.pt2`` file, what an ONNX or TensorFlow
    Lite file holds (bytes), an ``onnx.ModelProto``, or torch's ``ExportedProgram`` or ``ONNXProgram``; with
    ``newer_opset`` also of opsets that came later.

    Raises ModelError for anything else, and what is no whole model; UnsupportedError listing all that vkconv lacks.
    """
    # Imported here: routing and building shaders need graphs, not the libraries that read files.
    if isinstance(source, Graph):
        return source
    if is_exported_program(source):
        return load_exported(source)
    if not isinstance(source, str | Path):
        data = model_bytes(source)
        if is_tflite(data):
            return load_tflite_bytes(data)
        from vkconv.graph.onnx import load_onnx_bytes

        return load_onnx_bytes(data, newer_opset=newer_opset)
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix == ".vkc":
        from vkconv.graph.vkc import load_vkc

        return load_vkc(path)
    if suffix == ".onnx":
        from vkconv.graph.onnx import load_onnx

        return load_onnx(path, newer_opset=newer_opset)
    if suffix == ".tflite":
        return load_tflite(path)
    if suffix == ".pt2":
        return load_pt2(path)
    raise ModelError(
        f"{path}: vkconv reads {', '.join(SUFFIXES)} files, and this name ends in {suffix or 'none of them'}"
    )


def model_bytes(source: object) -> bytes:
    """What an ONNX file of a model in memory holds: bytes as they are, an ``onnx.ModelProto``, torch's ``ONNXProgram``.
    ModelError for anything else."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    proto = getattr(source, "model_proto", source)
    serialize = getattr(proto, "SerializeToString", None)
    if serialize is None or not hasattr(proto, "opset_import"):
        raise ModelError(
            f"a {type(source).__name__} is no model that vkconv reads; give the path of a {', '.join(SUFFIXES)} "
            "file, an onnx.ModelProto or its bytes, or convert it with torch.export.export"
        )
    try:
        return bytes(serialize())
    except ValueError as error:  # more than protobuf's 2 GiB
        raise ModelError(
            f"the ModelProto cannot be serialized ({error}); save it with external data and load the file"
        ) from None
