"""Graphs as data: the IR, the ``.vkc`` file format and the ONNX importer."""

from pathlib import Path

from vkconv.core import ModelError
from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec

__all__ = ["AttrValue", "Dim", "Graph", "Node", "TensorSpec", "load_model"]


def load_model(path: str | Path, *, newer_opset: bool = False) -> Graph:
    """The graph in a ``.vkc`` or ``.onnx`` file, by suffix; with ``newer_opset`` also of opsets that came later. Raises
    ModelError for anything else."""
    # Imported here: routing and building shaders need graphs, not the libraries that read files.
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".vkc":
        from vkconv.graph.vkc import load_vkc

        return load_vkc(path)
    if suffix == ".onnx":
        from vkconv.graph.onnx import load_onnx

        return load_onnx(path, newer_opset=newer_opset)
    raise ModelError(f"{path}: vkconv reads .vkc and .onnx files, and this name ends in {suffix or 'neither'}")
