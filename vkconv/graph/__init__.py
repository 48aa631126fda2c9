"""Graphs as data: the IR, the ``.vkc`` file format and the ONNX importer."""

from pathlib import Path

from vkconv.core import ModelError
from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec
from vkconv.graph.vkc import load_vkc, save_vkc

__all__ = ["AttrValue", "Dim", "Graph", "Node", "TensorSpec", "load_model", "load_vkc", "save_vkc"]


def load_model(path: str | Path) -> Graph:
    """The graph in a ``.vkc`` or ``.onnx`` file, by suffix. Raises ModelError for anything else."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".vkc":
        return load_vkc(path)
    if suffix == ".onnx":
        from vkconv.graph.onnx import load_onnx  # here: the onnx package is an extra, and slow to import

        return load_onnx(path)
    raise ModelError(f"{path}: vkconv reads .vkc and .onnx files, and this name ends in {suffix or 'neither'}")
