"""ONNX models of which vkconv takes a part, for the tests of delegation."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def made(nodes, inputs, outputs, weights=None, opset=18):
    """A checked model of float32 inputs and outputs, by shape."""
    weights = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node(op, reads.split(), writes.split(), f"n{i}", **attrs)
            for i, (op, reads, writes, attrs) in enumerate(nodes)
        ],
        "delegated",
        [info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def conv_det_conv(size=5):
    """A convolution, a determinant beside a function that vkconv has, and what both of them make."""
    weights = {"w": np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)}
    nodes = [
        ("Conv", "x w", "c", {"pads": [1, 1, 1, 1]}),
        ("Det", "c", "d", {}),
        ("Relu", "c", "r", {}),
        ("Unsqueeze", "d axes", "u", {}),
        ("Mul", "r u", "y", {}),
        ("Tanh", "r", "z", {}),
    ]
    weights["axes"] = np.array([2, 3])
    shape = [1, 4, size, size]
    return made(nodes, {"x": [1, 3, size, size]}, {"y": shape, "z": shape}, weights)


def with_subgraph():
    """An If whose branches read a value that the outer graph computes, and find a determinant of it."""
    info = helper.make_tensor_value_info
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Det", ["r"], ["d"]), helper.make_node(op, ["d"], ["o"])],
            name,
            [],
            [info("o", TensorProto.FLOAT, [])],
        )
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    nodes = [
        ("Sin", "x", "r", {}),
        ("ReduceSum", "x", "s", {"keepdims": 0}),
        ("Cast", "s", "p", {"to": TensorProto.BOOL}),
        ("If", "p", "i", branches),
        ("Exp", "i", "y", {}),
    ]
    return made(nodes, {"x": [3, 3]}, {"y": []})


def all_taken():
    return made([("Sin", "x", "a", {}), ("Exp", "a", "y", {})], {"x": [2, 3]}, {"y": [2, 3]})


def long_sum_inside():
    """A running sum over more elements than llvmpipe has iterations of a loop."""
    nodes = [
        ("Sin", "x", "a", {}),
        ("Cast", "a", "h", {"to": TensorProto.INT64}),
        ("CumSum", "h axis", "m", {}),
        ("Cast", "m", "f", {"to": TensorProto.FLOAT}),
        ("Sin", "f", "y", {}),
    ]
    return made(nodes, {"x": [1, 66000]}, {"y": [1, 66000]}, {"axis": np.array(1)})
