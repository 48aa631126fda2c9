"""GroupQueryAttention of ONNX Runtime in models: one node by itself, and a small decoder as phones' language models are
exported."""

import numpy as np
from required import required

required("onnx", "onnxruntime")
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

OPERANDS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total", "cos", "sin"),
    *("position_ids", "bias", "sink", "k_scale", "v_scale", "q_norm", "k_norm", "query_seqlens"),
)
MOST, WORDS, WIDTH, SIZE, PAST = 64, 23, 64, 16, "past_sequence_length"


def imports(opset):
    return [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]


def ran(model, inputs):
    """The outputs by ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def tables(most, half, dtype):
    """Cosines and sines of places, (most, half) each."""
    angles = np.arange(most)[:, None] / 50 ** (np.arange(half) / half)[None]
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def one_node(
    batch=1,
    rows=1,
    past=7,
    heads=4,
    kv_heads=2,
    size=32,
    dtype=np.float32,
    packed=False,
    turned=0,
    more=None,
    room=0,
    outputs=3,
    opset=17,
    names=None,
    **attrs,
):
    """A model of one node. ``past`` is None without one, ``turned`` the elements of a head that tables turn, ``more``
    has shapes of further inputs, ``room`` is the length of caches that have all their rows, ``names`` has dimensions
    that are open."""
    element, names = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), names or {}
    width = (heads + 2 * kv_heads if packed else heads) * size
    cache = [batch, kv_heads, room or past, size]
    shapes = {"query": [batch, rows, width]}
    if not packed:
        shapes |= {name: [batch, rows, kv_heads * size] for name in ("key", "value")}
    if past is not None:
        shapes |= dict.fromkeys(("past_key", "past_value"), cache)
    shapes |= {"seqlens_k": [batch], "total": []}
    if attrs.get("do_rotary"):
        shapes |= {name: [MOST, (turned or size) // 2] for name in ("cos", "sin")}
    shapes |= more or {}
    types = {"seqlens_k": TensorProto.INT32, "total": TensorProto.INT32, "position_ids": TensorProto.INT64}
    types["query_seqlens"] = TensorProto.INT32
    given = [name if name in shapes else "" for name in OPERANDS]
    while not given[-1]:
        given.pop()
    whole = [batch, kv_heads, room or rows + (past or 0), size]
    made = {"y": [batch, rows, heads * size], "present_key": whole, "present_value": whole}
    node = helper.make_node(
        "GroupQueryAttention",
        given,
        list(made)[:outputs],
        "attn",
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
        **attrs,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, types.get(name, element), names.get(name, shape))
            for name, shape in shapes.items()
        ],
        [
            helper.make_tensor_value_info(name, element, names.get(name, shape))
            for name, shape in list(made.items())[:outputs]
        ],
    )
    model = helper.make_model(graph, opset_imports=imports(opset), ir_version=8)
    return model, shapes


def inputs_of(shapes, lengths, dtype=np.float32, seed=3):
    """Inputs of `one_node` for images that have ``lengths`` rows with the new ones."""
    rng, rows, lengths = np.random.default_rng(seed), shapes["query"][1], np.asarray(lengths)
    known = {"seqlens_k": (lengths - 1).astype(np.int32), "total": np.int32(lengths.max())}
    if "cos" in shapes:
        known["cos"], known["sin"] = tables(*shapes["cos"], dtype)
    if "position_ids" in shapes:
        known["position_ids"] = np.maximum(0, lengths - rows)[:, None] + np.arange(rows)
    return {
        name: np.asarray(known[name]) if name in known else rng.standard_normal(shape).astype(dtype)
        for name, shape in shapes.items()
    }


def apart(found, wanted, lengths, rows):
    """The largest distance, beside the largest number, in outputs of `one_node`: of rows that are meant."""
    worst = 0.0
    for x, y in zip(found, wanted, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype, (x.shape, y.shape, x.dtype, y.dtype)
        for image, length in enumerate(lengths):
            part = (image, slice(min(rows, length))) if x.ndim == 3 else (image, slice(None), slice(length))
            worst = max(worst, float(np.abs(x[part].astype(np.float64) - y[part]).max() / np.abs(y[part]).max()))
    return worst


def decoder(layers=2, dtype=np.float32, batch="batch_size", heads=4, kv_heads=2, nbits=True, opset=21):
    """A decoder as exporters write one for phones: lengths from attention_mask, products with weights of four bits,
    RMS norms with the sum of a shortcut, GroupQueryAttention with rotary places."""
    rng, element = np.random.default_rng(5), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, constants = [], {}

    def op(op, *given, outputs=1, domain="", name="", **attrs):
        name = name or f"{op}_{len(nodes)}"
        made = [name, *(f"{name}/{i}" for i in range(1, outputs))] if isinstance(outputs, int) else list(outputs)
        nodes.append(helper.make_node(op, list(given), made, name, domain=domain, **attrs))
        return made[0]

    def const(value, of=None):
        name = f"const_{len(constants)}"
        constants[name] = numpy_helper.from_array(np.asarray(value, of or dtype), name)
        return name

    def product(x, k, n):
        if not nbits:
            return op("MatMul", x, const(rng.standard_normal((k, n)) / np.sqrt(k)))
        blocks = k // 32
        packed = const(rng.integers(0, 256, (n, blocks, 16)), np.uint8)
        scales = const((0.5 + rng.random((n, blocks))) / 5 / np.sqrt(k))
        attrs = {"K": k, "N": n, "bits": 4, "block_size": 32}
        return op("MatMulNBits", x, packed, scales, domain="com.microsoft", **attrs)

    total = f"{PAST} + sequence_length"
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, "sequence_length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [batch, total]),
    ]
    outputs = [helper.make_tensor_value_info("logits", element, [batch, "sequence_length", WORDS])]
    summed = op("ReduceSum", "attention_mask", const([1], np.int64), keepdims=1)
    lengths = op("Cast", op("Sub", summed, const([1], np.int64)), to=TensorProto.INT32)
    most = op("Gather", op("Shape", "attention_mask"), const(1, np.int64), axis=0)
    most = op("Cast", most, to=TensorProto.INT32)
    cos, sin = map(const, tables(MOST, SIZE // 2, dtype))
    x = op("Gather", const(rng.standard_normal((WORDS, WIDTH))), "input_ids", axis=0)
    h, skip = op("SimplifiedLayerNormalization", x, const(1 + rng.random(WIDTH)), axis=-1, epsilon=1e-5), x

    def normed(value):
        nonlocal skip
        name = f"norm_{len(nodes)}"
        made = [name, "", "", f"{name}/sum"]
        scale = const(1 + rng.random(WIDTH))
        kind = "SkipSimplifiedLayerNormalization"
        op(kind, skip, value, scale, outputs=made, domain="com.microsoft", epsilon=1e-5, name=name)
        skip = made[3]
        return name

    for i in range(layers):
        q, k, v = (product(h, WIDTH, n * SIZE) for n in (heads, kv_heads, kv_heads))
        pasts, presents = (
            [f"{word}.{i}.{what}" for what in ("key", "value")] for word in ("past_key_values", "present")
        )
        for past, present in zip(pasts, presents, strict=True):
            inputs.append(helper.make_tensor_value_info(past, element, [batch, kv_heads, PAST, SIZE]))
            shape = [batch, kv_heads, "total_sequence_length", SIZE]
            outputs.append(helper.make_tensor_value_info(present, element, shape))
        given = (q, k, v, *pasts, lengths, most, cos, sin)
        attrs = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "domain": "com.microsoft"}
        mixed = op("GroupQueryAttention", *given, outputs=(f"attn_{i}/y", *presents), name=f"attn_{i}", **attrs)
        h = normed(product(mixed, heads * SIZE, WIDTH))
        gate, up = (product(h, WIDTH, 2 * WIDTH) for _ in range(2))
        h = normed(product(op("Mul", op("Mul", gate, op("Sigmoid", gate)), up), 2 * WIDTH, WIDTH))
    nodes.append(helper.make_node("MatMul", [h, const(rng.standard_normal((WIDTH, WORDS)) / 8)], ["logits"], "head"))
    graph = helper.make_graph(nodes, "phone", inputs, outputs, list(constants.values()))
    return helper.make_model(graph, opset_imports=imports(opset), ir_version=10)


def empty(model, batch):
    """Caches without rows, by input."""
    made = {}
    for info in model.graph.input:
        if info.name.startswith("past"):
            dims = info.type.tensor_type.shape.dim
            dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            made[info.name] = np.zeros((batch, dims[1].dim_value, 0, dims[3].dim_value), dtype)
    return made
