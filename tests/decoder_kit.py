"""Small decoders as language models are exported: caches that come in as past_key_values.N and go out as present.N."""

import numpy as np
from required import required

required("onnx")
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

HEADS, KV_HEADS, SIZE, WIDTH, WORDS, MOST = 4, 2, 6, 24, 31, 1024
PAST = "past_sequence_length"


class _Writer:
    def __init__(self, dtype, seed):
        self.nodes, self.constants = [], {}
        self.dtype, self.rng = dtype, np.random.default_rng(seed)

    def op(self, op, *inputs, name="", **attrs):
        name = name or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attrs))
        return name

    def const(self, value, dtype=np.int64):
        array = np.asarray(value, dtype)
        name = f"const_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, *shape):
        return self.const(self.rng.standard_normal(shape) / np.sqrt(shape[0]), self.dtype)

    def dim(self, value, axis):
        return self.op("Gather", self.op("Shape", value), self.const(axis), axis=0)


def decoder(layers=2, dtype=np.float32, positions="shape", masked=True, batch=1):
    """A decoder with rotary positions, grouped heads and a causal mask. ``positions``: from shapes of the past, an
    input, or learned; ``masked`` adds an attention_mask of batch x total rows."""
    w = _Writer(dtype, 7)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, "sequence_length"])
    inputs, outputs = [ids], [helper.make_tensor_value_info("logits", element, [batch, "sequence_length", WORDS])]
    past_length = w.dim("past_key_values.0.key", 2)
    length = w.dim("input_ids", 1)
    total = w.op("Add", past_length, length)
    one, zero = w.const(1), w.const(0)
    x = w.op("Gather", w.weight(WORDS, WIDTH), "input_ids", axis=0)
    places = w.op("Range", past_length, total, one)
    if positions == "input":
        inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, [batch, "sequence_length"]))
        places = w.op("Reshape", "position_ids", w.const([-1]))
    if positions == "learned":
        x = w.op("Add", x, w.op("Gather", w.weight(MOST, WIDTH), places, axis=0))
    angles = np.arange(MOST)[:, None] / 50 ** (np.arange(SIZE // 2) / (SIZE // 2))[None]
    cos, sin = (
        w.op("Gather", w.const(np.concatenate([f(angles)] * 2, 1), dtype), places, axis=0) for f in (np.cos, np.sin)
    )
    keys = w.op("Range", zero, total, one)
    queries = w.op("Unsqueeze", w.op("Range", past_length, total, one), w.const([1]))
    seen = w.op("LessOrEqual", w.op("Unsqueeze", keys, w.const([0])), queries)
    if masked:
        inputs.append(
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [batch, f"{PAST} + sequence_length"])
        )
        allowed = w.op("Cast", w.op("Unsqueeze", "attention_mask", w.const([1, 2])), to=TensorProto.BOOL)
        seen = w.op("And", seen, allowed)
    lowest = float(np.finfo(dtype).min)
    bias = w.op("Where", seen, w.const(0, dtype), w.const(lowest, dtype))

    def heads(value, count):
        shape = w.const([batch, -1, count, SIZE])
        return w.op("Transpose", w.op("Reshape", value, shape), perm=[0, 2, 1, 3])

    def rotated(value):
        half = [w.const([n]) for n in (0, SIZE // 2, SIZE)]
        low, high = (w.op("Slice", value, half[i], half[i + 1], w.const([3])) for i in (0, 1))
        turned = w.op("Concat", w.op("Neg", high), low, axis=-1)
        return w.op("Add", w.op("Mul", value, cos), w.op("Mul", turned, sin))

    def repeated(value):
        """Heads of keys and values for each group of queries."""
        groups = HEADS // KV_HEADS
        shape = w.op(
            "Concat",
            w.const([batch, KV_HEADS, groups]),
            w.op("Unsqueeze", w.dim(value, 2), w.const([0])),
            w.const([SIZE]),
            axis=0,
        )
        spread = w.op("Expand", w.op("Unsqueeze", value, w.const([2])), shape)
        return w.op("Reshape", spread, w.const([batch, HEADS, -1, SIZE]))

    for i in range(layers):
        h = w.op("LayerNormalization", x, w.const(np.ones(WIDTH), dtype), axis=-1)
        q = heads(w.op("MatMul", h, w.weight(WIDTH, HEADS * SIZE)), HEADS)
        k, v = (heads(w.op("MatMul", h, w.weight(WIDTH, KV_HEADS * SIZE)), KV_HEADS) for _ in "kv")
        if positions != "learned":
            q, k = rotated(q), rotated(k)
        present = []
        for what, value in (("key", k), ("value", v)):
            past, name = f"past_key_values.{i}.{what}", f"present.{i}.{what}"
            inputs.append(helper.make_tensor_value_info(past, element, [batch, KV_HEADS, PAST, SIZE]))
            outputs.append(helper.make_tensor_value_info(name, element, [batch, KV_HEADS, "total", SIZE]))
            present.append(w.op("Concat", past, value, axis=2, name=name))
        k, v = map(repeated, present)
        scores = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = w.op("Add", w.op("Mul", scores, w.const(SIZE**-0.5, dtype)), bias)
        mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), v)
        joined = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), w.const([batch, -1, WIDTH]))
        x = w.op("Add", x, w.op("MatMul", joined, w.weight(WIDTH, WIDTH)))
        h = w.op("Relu", w.op("MatMul", x, w.weight(WIDTH, 2 * WIDTH)))
        x = w.op("Add", x, w.op("MatMul", h, w.weight(2 * WIDTH, WIDTH)))
    w.op("MatMul", x, w.weight(WIDTH, WORDS), name="logits")
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, list(w.constants.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def feeds(model, ids, length):
    """The inputs of a run that are no caches, behind ``length`` rows."""
    names = {info.name for info in model.graph.input}
    batch, count = ids.shape
    made = {"input_ids": ids}
    if "attention_mask" in names:
        made["attention_mask"] = np.ones((batch, length + count), np.int64)
    if "position_ids" in names:
        made["position_ids"] = np.tile(np.arange(length, length + count), (batch, 1))
    return made


def empty(model):
    """Caches without rows, by input."""
    pasts = [info for info in model.graph.input if info.name.startswith("past")]
    dtype = helper.tensor_dtype_to_np_dtype(pasts[0].type.tensor_type.elem_type)
    batch = pasts[0].type.tensor_type.shape.dim[0].dim_value
    return {info.name: np.zeros((batch, KV_HEADS, 0, SIZE), dtype) for info in pasts}
