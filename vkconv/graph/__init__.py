"""Graphs as data: the IR, the ``.vkc`` file format and the ONNX importer."""

from pathlib import Path

from vkconv.core import ModelError
from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec

__all__ = ["AttrValue", "Dim", "Graph", "Node", "TensorSpec", "load_model"]


def load_model(source: object, *, newer_opset: bool = False) -> Graph:
    """The graph of a model: the path of a ``.vkc`` or ``.onnx`` file, what an ONNX file holds (bytes), an
    ``onnx.ModelProto``, or torch's ``ONNXProgram``; with ``newer_opset`` also of opsets that came later.

    Raises ModelError for anything else, and what is no whole model; UnsupportedError listing all that vkconv lacks.
    """
    # Imported here: routing and building shaders need graphs, not the libraries that read files.
    if isinstance(source, Graph):
        return source
    if not isinstance(source, str | Path):
        from vkconv.graph.onnx import load_onnx_bytes

        return load_onnx_bytes(model_bytes(source), newer_opset=newer_opset)
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix == ".vkc":
        from vkconv.graph.vkc import load_vkc

        return load_vkc(path)
    if suffix == ".onnx":
        from vkconv.graph.onnx import load_onnx

        return load_onnx(path, newer_opset=newer_opset)
    raise ModelError(f"{path}: vkconv reads .vkc and .onnx files, and this name ends in {suffix or 'neither'}")


def model_bytes(source: object) -> bytes:
    """What an ONNX file of a model in memory holds: bytes as they are, an ``onnx.ModelProto``, torch's ``ONNXProgram``.
    ModelError for anything else."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    proto = getattr(source, "model_proto", source)
    serialize = getattr(proto, "SerializeToString", None)
    if serialize is None or not hasattr(proto, "opset_import"):
        raise ModelError(
            f"a {type(source).__name__} is no model that vkconv reads; give the path of a .vkc or .onnx file, an "
            "onnx.ModelProto or its bytes, or convert it with torch.onnx.export(..., dynamo=True)"
        )
    try:
        return bytes(serialize())
    except ValueError as error:  # more than protobuf's 2 GiB
        raise ModelError(
            f"the ModelProto cannot be serialized ({error}); save it with external data and load the file"
        ) from None
