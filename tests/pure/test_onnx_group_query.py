"""Attention and norms of exported language models in ONNX Runtime's domain, by references, against ONNX Runtime."""

import gqa_kit
import numpy as np
import pytest
from gqa_kit import apart, imports, inputs_of, one_node, ran
from graph_kit import evaluate
from onnx import TensorProto, helper, numpy_helper

from vkconv.core import GraphError, UnsupportedError
from vkconv.graph.onnx import load_onnx_proto
from vkconv.onnx_export import to_onnx
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.caches import find_pairs

TURNED = {"do_rotary": 1}
# Case: what `one_node` takes, and the rows of each image with the new ones.
CASES = {
    "prompt": ({"rows": 5, "past": 0}, [5]),
    "prompt, turned": ({"rows": 5, "past": 0, **TURNED}, [5]),
    "prompt, no past": ({"rows": 5, "past": None, **TURNED}, [5]),
    "prompt, no past, one output": ({"rows": 5, "past": None, "outputs": 1}, [5]),
    "token": ({}, [8]),
    "token, turned": (TURNED, [8]),
    "token, interleaved": ({**TURNED, "rotary_interleaved": 1}, [8]),
    "token, a part turned": ({**TURNED, "turned": 16}, [8]),
    "token, a part interleaved": ({**TURNED, "turned": 16, "rotary_interleaved": 1}, [8]),
    "token, places given": ({**TURNED, "more": {"position_ids": [1, 1]}}, [8]),
    "rows behind a past": ({"rows": 3, **TURNED}, [10]),
    "packed": ({"rows": 3, "packed": True, **TURNED}, [10]),
    "packed prompt of two": ({"batch": 2, "rows": 3, "past": 0, "packed": True, **TURNED}, [3, 3]),
    "heads of 64": ({"size": 64, **TURNED}, [8]),
    "heads of 80": ({"size": 80, "heads": 3, "kv_heads": 1, **TURNED}, [8]),
    "heads of 80, interleaved": ({"size": 80, "heads": 3, "kv_heads": 3, "rotary_interleaved": 1, **TURNED}, [8]),
    "a head of keys for each": ({"kv_heads": 4, "rows": 3, **TURNED}, [10]),
    "one head of keys": ({"kv_heads": 1, "rows": 3, **TURNED}, [10]),
    "eight heads of two": ({"heads": 8, "kv_heads": 2, "rows": 3, **TURNED}, [10]),
    "scale": ({"scale": 0.3}, [8]),
    "window": ({"rows": 3, "local_window_size": 4, **TURNED}, [10]),
    "window, prompt": ({"rows": 9, "past": 0, "local_window_size": 4}, [9]),
    "window, all": ({"rows": 3, "local_window_size": 100}, [10]),
    "cap": ({"rows": 3, "softcap": 2.5, **TURNED}, [10]),
    "bias": ({"rows": 3, "more": {"bias": [1, 4, 3, 10]}}, [10]),
    "bias for all heads": ({"rows": 3, "more": {"bias": [1, 1, 3, 10]}}, [10]),
    "bias and cap": ({"rows": 3, "softcap": 1.5, "more": {"bias": [1, 4, 3, 10]}}, [10]),
    "bias for all heads and cap": ({"rows": 3, "softcap": 1.5, "more": {"bias": [1, 1, 3, 10]}}, [10]),
    "smooth": ({"rows": 3, "smooth_softmax": 1, **TURNED}, [10]),
    "sink": ({"rows": 3, "more": {"sink": [4]}, **TURNED}, [10]),
    "sink, window and cap": ({"rows": 3, "more": {"sink": [4]}, "local_window_size": 3, "softcap": 3.0}, [10]),
    "not causal": ({"rows": 9, "past": 0, "causal": 0}, [9]),
    "not causal behind a past": ({"rows": 3, "causal": 0}, [10]),
    "two tokens, pasts of 7 and 4": ({"batch": 2, **TURNED}, [8, 5]),
    "two prompts of 5 and 3": ({"batch": 2, "rows": 5, "past": 0, **TURNED}, [5, 3]),
    "caches with all rows": ({"room": 20, **TURNED}, [8]),
    "caches with all rows, prompt": ({"room": 20, "rows": 5, **TURNED}, [5]),
    "caches with all rows, 8 and 5": ({"batch": 2, "room": 20, **TURNED}, [8, 5]),
    "f16": ({"dtype": np.float16, "rows": 3, **TURNED}, [10]),
    "f16, cap": ({"dtype": np.float16, "softcap": 2.0, **TURNED}, [8]),
    "f16, sink": ({"dtype": np.float16, "more": {"sink": [4]}, **TURNED}, [8]),
}


def both(case):
    options, lengths = CASES[case]
    model, shapes = one_node(**options)
    inputs = inputs_of(shapes, lengths, options.get("dtype", np.float32))
    graph = load_onnx_proto(model)
    return model, graph, inputs, lengths


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_onnx_runtime_makes_of_it(case):
    """ONNX Runtime rounds in f32; in f16 it stores what it rotates, and results, in f16."""
    model, graph, inputs, lengths = both(case)
    wanted = ran(model, inputs)
    found = evaluate(bind(graph, OPS, {name: x.shape for name, x in inputs.items()}), inputs)
    found = [x.astype(y.dtype) for x, y in zip(found, wanted, strict=True)]
    allowed = 1e-6 if wanted[0].dtype == np.float32 else 2e-3
    assert apart(found, wanted, lengths, inputs["query"].shape[1]) <= allowed


def test_the_head_size_follows_from_what_is_known():
    """Where the width of queries is open, the past says it."""
    open_width = {"query": ["n", "l", "w"], "key": ["n", "l", "w_k"], "value": ["n", "l", "w_k"], "y": None}
    model, shapes = one_node(names=open_width, **TURNED)
    inputs = inputs_of(shapes, [8])
    found = evaluate(bind(load_onnx_proto(model), OPS, {name: x.shape for name, x in inputs.items()}), inputs)
    assert apart([x.astype(np.float32) for x in found], ran(model, inputs), [8], 1) <= 1e-6
    model, _ = one_node(names=open_width, past=None, **TURNED)
    with pytest.raises(UnsupportedError, match=r"attn\): the size of its heads cannot be told from the model; give"):
        load_onnx_proto(model)


def test_norms_of_queries_and_keys_are_those_before_the_node():
    """ONNX Runtime's CPU code has none: it is given the norms as nodes of their own."""
    options = {"rows": 3, "more": {"q_norm": [32], "k_norm": [32]}, **TURNED}
    model, shapes = one_node(qk_norm_epsilon=1e-5, k_norm_epsilon=1e-3, **options)
    inputs = inputs_of(shapes, [10])
    plain, _ = one_node(rows=3, **TURNED)
    attended = dict(inputs)
    for name, weights, epsilon in (("query", "q_norm", 1e-5), ("key", "k_norm", 1e-3)):
        heads = inputs[name].reshape(1, 3, -1, 32).astype(np.float64)
        size = np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + epsilon)
        attended[name] = (heads / size * inputs[weights]).reshape(inputs[name].shape).astype(np.float32)
    wanted = ran(plain, {name: x for name, x in attended.items() if not name.endswith("norm")})
    found = evaluate(bind(load_onnx_proto(model), OPS), inputs)
    assert apart([x.astype(np.float32) for x in found], wanted, [10], 3) <= 2e-6


def turned(x, places, cos, sin, interleaved):
    """Heads (N, L, H D) with all their elements turned at places (N, L), in float64."""
    n, rows, width = x.shape
    size = 2 * cos.shape[1]
    heads = x.astype(np.float64).reshape(n, rows, width // size, size)
    c, s = (table[places].astype(np.float64)[:, :, None] for table in (cos, sin))
    parts = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(size // 2), slice(size // 2, None))
    a, b = (heads[..., part] for part in parts)
    made = np.empty_like(heads)
    made[..., parts[0]], made[..., parts[1]] = a * c - b * s, b * c + a * s
    return made.reshape(x.shape).astype(np.float32)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("options", "lengths", "places"),
    [
        ({"rows": 4, "past": 0}, [4], [[3, 0, 17, 17]]),
        ({"rows": 3}, [10], [[40, 7, 21]]),
        ({"batch": 2, "rows": 1}, [8, 5], [[9], [2]]),
        ({"batch": 2, "rows": 3, "past": 0}, [3, 2], [[5, 6, 63], [0, 2, 4]]),
    ],
    ids=["prompt", "rows behind a past", "tokens of two", "prompts of two"],
)
def test_places_that_do_not_follow_each_other_are_taken_as_they_are(options, lengths, places, interleaved):
    """ONNX Runtime, which counts on from the first of a prompt, is given what is turned already."""
    places = np.array(places)
    rotary = {"do_rotary": 1, "rotary_interleaved": interleaved, "more": {"position_ids": list(places.shape)}}
    model, shapes = one_node(**options, **rotary)
    inputs = inputs_of(shapes, lengths) | {"position_ids": places}
    plain, _ = one_node(**options)
    given = {name: inputs[name] for name in (info.name for info in plain.graph.input)}
    for name in ("query", "key"):
        given[name] = turned(inputs[name], places, inputs["cos"], inputs["sin"], interleaved)
    wanted = ran(plain, given)
    found = evaluate(bind(load_onnx_proto(model), OPS, {name: x.shape for name, x in inputs.items()}), inputs)
    found = [x.astype(np.float32) for x in found]
    assert apart(found, wanted, lengths, inputs["query"].shape[1]) <= 1e-6


REFUSED = {
    "qk_output=1": {"qk_output": 1},
    "sliding_window_cache=1, caches that drop their oldest rows; export it": {
        "sliding_window_cache": 1,
        "local_window_size": 4,
    },
    "k_quant_type='PER_TENSOR', quantized caches; export it": {"k_quant_type": "PER_TENSOR"},
    "input 12 is k_scale": {"more": {"k_scale": [1]}},
    "input 16 is query_seqlens": {"more": {"query_seqlens": [1]}},
    "local_window_size=0; it is -1 for none, or": {"local_window_size": 0},
    "causal=0 with local_window_size=3": {"causal": 0, "local_window_size": 3},
    "one of q_norm_weight and k_norm_weight": {"more": {"q_norm": [32]}},
    "num_heads=4 and kv_num_heads=3; the second divides": {"kv_heads": 3},
    "do_rotary=1 without cos_cache": {"do_rotary": 1, "strip": (7, 8)},
    "it has no seqlens_k": {"strip": (5,)},
    "one of key and value": {"strip": (2,)},
    "one of past_key and past_value": {"strip": (4,)},
    "its tables turn 64 elements, and heads have 32": {"turned": 64, "do_rotary": 1},
    "'cos'\\) is 20000 wide; a head has 2 to": {"turned": 40000, "do_rotary": 1},
    r"its input 0 \('query'\) has rank 2; vkconv takes 3": {"names": {"query": [1, 128]}},
    "scale=-1; it is a positive number": {"scale": -1.0},
    "softcap=nan; it is a positive number": {"softcap": float("nan")},
    r"its query \('query'\) is i32; it takes f32": {"dtype": np.int32},
    "attribute 'odd' is one that vkconv does not have": {"odd": 1},
    "attention_bias with softcap or a sink, for 2 heads": {"softcap": 1.0, "more": {"bias": [1, 2, 1, 8]}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_missing_is_refused_by_name(words):
    options = dict(REFUSED[words])
    stripped = options.pop("strip", ())
    model, _ = one_node(**options)
    for i in stripped:
        model.graph.node[0].input[i] = ""
    with pytest.raises(UnsupportedError, match=rf"GroupQueryAttention \(attn\): .*{words}"):
        load_onnx_proto(model, "phone.onnx")


def test_shapes_that_do_not_go_together_name_the_node():
    model, _ = one_node(names={"past_key": [1, 2, 7, 16]})
    with pytest.raises(GraphError, match=r"concat node 'attn/concat'.*2x7x16"):
        bind(load_onnx_proto(model), OPS)


def test_layers_share_places_tables_and_masks():
    graph = load_onnx_proto(gqa_kit.decoder(layers=3))
    ops = [node.op for node in graph.nodes if node.name.startswith("attn")]
    assert ops.count("attention") == 3 and ops.count("less_equal") == ops.count("where") == 1
    assert ops.count("range") == 2 and ops.count("maximum") == 1


def test_layers_of_other_lengths_share_nothing():
    """Where dimensions have no names, nothing says that they are the same."""
    model = gqa_kit.decoder()
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    ops = [node.op for node in load_onnx_proto(model).nodes]
    assert ops.count("less_equal") == 2


def test_a_cache_is_one_that_grows_or_one_with_all_its_rows():
    named = {"past_key": [2, 2, "past", 32], "past_value": [2, 2, "past", 32]}
    made = {"present_key": [2, 2, "total", 32], "present_value": [2, 2, "total", 32]}
    graph = load_onnx_proto(one_node(batch=2, names=named | made)[0])
    pairs = find_pairs(graph, OPS, {"past": 8})
    assert [(p.past, p.present, p.appends, bool(p.joins)) for p in pairs] == [
        ("past_key", "present_key", True, True),
        ("past_value", "present_value", True, True),
    ]
    same = named | {"present_key": named["past_key"], "present_value": named["past_value"]}
    pairs = find_pairs(load_onnx_proto(one_node(batch=2, names=same)[0]), OPS, {})
    assert [p.appends for p in pairs] == [False, False]


@pytest.mark.parametrize("lengths", [[8], [5, 9]])
def test_room_behind_the_past_is_not_seen(lengths):
    """Where dimensions have other names and a run gives caches with all their rows, as ONNX Runtime takes them: what it
    makes is the same, and so are the rows that are meant. Behind them ONNX Runtime has no more rows than before."""
    batch = len(lengths)
    dims = {"past": [batch, 2, "past", 32], "present": [batch, 2, "total", 32]}
    names = {f"{when}_{what}": dims[when] for when in dims for what in ("key", "value")}
    model, shapes = one_node(batch=batch, room=20, names=names, **TURNED)
    inputs = inputs_of(shapes, lengths)
    wanted = ran(model, inputs)
    found = evaluate(bind(load_onnx_proto(model), OPS, {name: x.shape for name, x in inputs.items()}), inputs)
    assert found[1].shape[2] == 21 and wanted[1].shape[2] == 20
    found = [found[0], found[1][:, :, :20], found[2][:, :, :20]]
    assert apart([x.astype(np.float32) for x in found], wanted, lengths, 1) <= 1e-6


def test_it_is_written_in_operators_of_onnx():
    model, graph, inputs, lengths = both("rows behind a past")
    again = to_onnx(graph)
    given = {info.name for info in again.graph.input}
    wanted, found = ran(model, inputs), ran(again, {name: x for name, x in inputs.items() if name in given})
    assert apart(found, wanted, lengths, 3) <= 2e-6


NORMS = {
    "SimplifiedLayerNormalization": (("x", "scale"), {"axis": -1, "stash_type": 1}),
    "SkipSimplifiedLayerNormalization": (("x", "skip", "scale"), {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization, bias": (("x", "skip", "scale", "bias"), {"epsilon": 1e-5}),
    "SkipLayerNormalization": (("x", "skip", "scale", "shift", "bias"), {"epsilon": 1e-5}),
    "SkipLayerNormalization, no shift": (("x", "skip", "scale", "", "bias"), {}),
}


@pytest.mark.parametrize("case", NORMS)
@pytest.mark.parametrize("opset", [14, 21])
def test_norms_are_those_of_onnx_runtime_in_every_opset(case, opset):
    """Behind them a node that is typed by what they make, and the sum as an output."""
    names, attrs = NORMS[case]
    op = case.partition(",")[0]
    rng, skips = np.random.default_rng(2), op.startswith("Skip")
    arrays = {
        name: rng.standard_normal((2, 3, 8) if name in ("x", "skip") else 8).astype(np.float32)
        for name in names
        if name
    }
    outputs = ["h", "", "", "total"] if skips else ["h"]
    domain = "com.microsoft" if skips else ""
    nodes = [helper.make_node(op, names, outputs, "norm", domain=domain, **attrs)]
    nodes.append(helper.make_node("Sub", ["h", "x"], ["y"], "apart"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items() if a.ndim == 3],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3, 8)) for n in ("y", *outputs[3:])],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if a.ndim == 1],
    )
    model = helper.make_model(graph, opset_imports=imports(opset), ir_version=8)
    inputs = {info.name: arrays[info.name] for info in model.graph.input}
    for found, wanted in zip(evaluate(bind(load_onnx_proto(model), OPS), inputs), ran(model, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
    model.graph.node[0].input[1] = ""
    with pytest.raises(UnsupportedError, match=r"norm\): it has no input 1; ONNX Runtime needs the first"):
        load_onnx_proto(model)


ROTARY = {
    "rank 3": ((2, 5, 64), (2, 5), 16, {}),
    "rank 4": ((2, 4, 5, 16), (2, 5), 16, {}),
    "from a place on": ((2, 5, 64), (1,), 16, {}),
    "rank 4, from a place on, interleaved": ((2, 4, 5, 16), (1,), 16, {"interleaved": 1}),
    "a part": ((2, 5, 64), (2, 5), 8, {"num_heads": 4, "rotary_embedding_dim": 8}),
    "a part, interleaved": ((2, 5, 64), (2, 5), 8, {"num_heads": 4, "rotary_embedding_dim": 8, "interleaved": 1}),
}


def rotary(shape, places, turned, attrs):
    values = {"x": (TensorProto.FLOAT, shape), "places": (TensorProto.INT64, places)}
    tables = dict(zip(("cos", "sin"), gqa_kit.tables(32, turned // 2, np.float32), strict=True))
    names = ["x", "places", "cos", "sin"]
    nodes = [helper.make_node("RotaryEmbedding", names, ["h"], "turn", domain="com.microsoft", **attrs)]
    nodes.append(helper.make_node("Sub", ["h", "x"], ["y"], "apart"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *value) for name, value in values.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(table, name) for name, table in tables.items()],
    )
    return helper.make_model(graph, opset_imports=imports(17), ir_version=8)


@pytest.mark.parametrize("case", ROTARY)
def test_rotary_embedding_is_that_of_onnx_runtime(case):
    shape, places, turned, attrs = ROTARY[case]
    rng = np.random.default_rng(1)
    inputs = {"x": rng.standard_normal(shape).astype(np.float32), "places": rng.integers(0, 20, places)}
    model = rotary(shape, places, turned, attrs)
    (found,), (wanted,) = evaluate(bind(load_onnx_proto(model), OPS), inputs), ran(model, inputs)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"scale": 2.0}, "scale=2, which ONNX Runtime's own code leaves out"),
        ({"is_packed_batching": 1}, "is_packed_batching=1, sequences of several lengths"),
        ({"rotary_embedding_dim": 8}, "rotary_embedding_dim=8 with num_heads=0"),
    ],
)
def test_rotary_embedding_refuses_by_name(attrs, words):
    with pytest.raises(UnsupportedError, match=rf"RotaryEmbedding \(turn\): {words}"):
        load_onnx_proto(rotary((2, 5, 64), (2, 5), 16, attrs))
