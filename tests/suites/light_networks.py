"""The networks that come with onnx as ``light_*``, with weights of their own.

As shipped every weight is one number repeated, and so is every output: any network that mixes up channels would pass.
Here each constant becomes an initializer of seeded random numbers of a size that keeps activations in range.
"""

from pathlib import Path

import numpy as np
from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import numpy_helper  # noqa: E402

_FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
# Name to the multiply-adds of one picture, in millions, in the order of that.
NETWORKS = ("shufflenet", "squeezenet", "bvlc_alexnet", "zfnet512", "inception_v1", "inception_v2", "densenet121")
NETWORKS += ("resnet50", "vgg19")


def light_network(name: str, seed: int = 8) -> onnx.ModelProto:
    """A network with random weights: He et al.'s, smaller where a branch joins a sum and before a softmax, which would
    else come to ones and zeros."""
    model = onnx.load(_FOLDER / f"light_{name}.onnx")
    graph, rng = model.graph, np.random.default_rng(seed)
    given = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    made = {n.output[0]: tuple(given[n.input[0]]) for n in graph.node if n.op_type == "ConstantOfShape"}
    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    readers: dict[str, list[tuple[str, int, str]]] = {}
    for node in nodes:
        for place, value in enumerate(node.input):
            readers.setdefault(value, []).append((node.op_type, place, node.output[0]))

    # Batch normalizations have initializers in place of some constants.
    made |= {name: array.shape for name, array in given.items() if name in readers and array.dtype == np.float32}

    def read_by(value: str) -> set[str]:
        return {op for op, _, _ in readers.get(value, ())}

    def weights(value: str, shape: tuple[int, ...]) -> np.ndarray:
        op, place, written = readers[value][0]
        while op in ("Reshape", "Unsqueeze"):
            op, place, written = readers[written][0]
        normal = rng.standard_normal(shape, np.float32)
        if op in ("Conv", "Gemm") and place == 1:
            gain = 0.3 if op == "Gemm" and "Relu" not in read_by(written) else 2
            return normal * np.float32(np.sqrt(gain / np.prod(shape[1:])))
        if (op, place) in (("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 1)):
            added = place == 1 and "Sum" in read_by(written)
            return (1 + 0.3 * np.tanh(normal)) * np.float32(0.2 if added else 1)
        return normal * np.float32(0.1)

    constants = {value: numpy_helper.from_array(weights(value, shape), value) for value, shape in made.items()}
    used = {value for node in nodes for value in node.input}
    constants |= {i.name: i for i in graph.initializer if i.name in used and i.name not in made}
    inputs = [item for item in graph.input if item.name in used and item.name not in constants]
    for field, items in ((graph.node, nodes), (graph.input, inputs), (graph.initializer, constants.values())):
        kept = list(items)
        del field[:]
        field.extend(kept)
    model.ir_version = 4  # the first one in which weights need not be inputs too
    return model
