"""Graphs as data: the IR, the ``.vkc`` file format and the ONNX importer."""

from vkconv.graph.ir import AttrValue, Dim, Graph, Node, TensorSpec

__all__ = ["AttrValue", "Dim", "Graph", "Node", "TensorSpec"]
