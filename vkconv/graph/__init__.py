"""Graphs as data: the IR, the ``.vkc`` file format and the ONNX importer."""

from pathlib import Path

from vkconv.core import ModelError
from vkconv.graph.aten import is_exported_program, load_exported, load_pt2, load_pt2_bytes
from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec
from vkconv.graph.pte import is_pte, load_pte, load_pte_bytes
from vkconv.graph.tflite import is_tflite, load_tflite, load_tflite_bytes

__all__ = ["SUFFIXES", "AttrValue", "Dim", "Graph", "Node", "TensorSpec", "load_model"]

SUFFIXES = (".vkc", ".onnx", ".tflite", ".pt2", ".pte")
"""How the names of files end that hold models."""

_ARCHIVE = b"PK\x03\x04"  # of zip, which .pt2 files are
_TO_PT2 = "torch.export.save(torch.export.export(model.eval(), (x,)), 'model.pt2')"
_TO_TFLITE = "convert it with TensorFlow's tf.lite.TFLiteConverter"
_TO_ONNX = "convert it to ONNX with its framework's exporter"
# What to do with files of other kinds.
_ADVICE = {
    ".ptd": "it holds weights of an ExecuTorch program: export that with its weights inside",
    ".bpte": "it is a bundled program of ExecuTorch: load the .pte file that it was made of",
    **dict.fromkeys((".pt", ".pth", ".ckpt"), f"write the model with {_TO_PT2}"),
    **dict.fromkeys((".h5", ".keras", ".pb"), _TO_TFLITE),
    ".task": "it is an archive: unzip it, and load the .tflite files in it",
    **dict.fromkeys((".mlmodel", ".pdmodel", ".param"), _TO_ONNX),
}


def load_model(source: object, *, newer_opset: bool = False, f64_as_f32: bool = False) -> Graph:
    """The graph of a model: the path of a file that ends in one of `SUFFIXES`, what one other than ``.vkc`` holds
    (bytes), an ``onnx.ModelProto``, or torch's ``ExportedProgram`` or ``ONNXProgram``; with
    ``newer_opset`` also of opsets that came later. ``f64_as_f32`` takes 64-bit floats of ONNX models for 32-bit ones.

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
        if is_pte(data):
            return load_pte_bytes(data)
        if data[:4] == _ARCHIVE:
            return load_pt2_bytes(data)
        from vkconv.graph.onnx import load_onnx_bytes

        return load_onnx_bytes(data, newer_opset=newer_opset, f64_as_f32=f64_as_f32)
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix == ".vkc":
        from vkconv.graph.vkc import load_vkc

        return load_vkc(path)
    if suffix == ".onnx":
        from vkconv.graph.onnx import load_onnx

        return load_onnx(path, newer_opset=newer_opset, f64_as_f32=f64_as_f32)
    if suffix == ".tflite":
        return load_tflite(path)
    if suffix == ".pt2":
        return load_pt2(path)
    if suffix == ".pte":
        return load_pte(path)
    if path == Path():  # what an empty name is, too
        raise ModelError("no file is named: an empty name, or that of this folder; name a model")
    advice = f"; {_ADVICE[suffix]}" if suffix in _ADVICE else ""
    raise ModelError(
        f"{path}: vkconv reads {', '.join(SUFFIXES)} files, and this name ends in {suffix or 'none of them'}{advice}"
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
