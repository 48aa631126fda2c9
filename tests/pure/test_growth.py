"""Graphs that are planned once for all lengths of a past: each length against the graph as it is, by references."""

import json

import decoder_kit
import numpy as np
import pytest
from cli_kit import vkconv
from graph_kit import evaluate, f32, i64, make_graph

from vkconv.core import DType, GraphError, InputError, UnsupportedError
from vkconv.device import load_device
from vkconv.graph import TensorSpec
from vkconv.graph.onnx import load_onnx_proto
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.caches import cut, find_pairs, padded
from vkconv.plan.commands import Copy, Launch
from vkconv.plan.explain import memory_table
from vkconv.plan.growth import grown_graph
from vkconv.plan.planner import plan

LAVAPIPE = load_device("lavapipe")
RNG = np.random.default_rng(5)
CACHE = ("concat", "past new", "y", {"axis": 1})


def rows(n=1, **more):
    """Inputs of a cache of n x 3 rows, of 2 batches."""
    return {"past": (2, "p", 3), "new": (2, n, 3), **more}


def check_lengths(graph, inputs_at, capacity, bound="p", dims=None):
    """Hold what is planned once to the graph bound at each length; returns what is planned."""
    bounds = {bound: capacity}
    pairs = find_pairs(graph, OPS, bounds)
    first = inputs_at(0)
    grown = grown_graph(graph, OPS, pairs, bounds, {name: a.shape for name, a in first.items()}, dims or {})
    whole = bind(grown.graph, OPS)
    specs = {pair.past: graph.inputs[pair.past] for pair in pairs}
    full = {pair.past: np.zeros(grown.graph.inputs[pair.past].dims) for pair in pairs}
    past = {
        name: np.zeros([0 if d == bound else d for d in spec.shape], spec.dtype.numpy) for name, spec in specs.items()
    }
    for length in range(0, capacity - grown.rows + 1, grown.rows):
        given = inputs_at(length)
        arrays = given | past
        wanted = dict(
            zip(graph.outputs, evaluate(bind(graph, OPS, {k: v.shape for k, v in arrays.items()}), arrays), strict=True)
        )
        fed = {name: padded(array, grown.graph.inputs[name].dims) for name, array in given.items()}
        found = dict(zip(graph.outputs, evaluate(whole, fed | full | grown.host_inputs(length, OPS)), strict=True))
        for name, want in wanted.items():
            got = cut(found[name], grown.offsets[name], length) if name in grown.offsets else found[name]
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9, err_msg=f"{name} at {length}")
        full = {pair.past: found[pair.present] for pair in pairs}
        past = {pair.past: wanted[pair.present] for pair in pairs}
    return grown


@pytest.mark.parametrize("positions", ["shape", "input", "learned"])
@pytest.mark.parametrize("masked", [True, False])
def test_a_decoder_is_right_at_every_length(positions, masked):
    model = decoder_kit.decoder(layers=1, positions=positions, masked=masked)
    graph = load_onnx_proto(model)

    def inputs_at(length):
        fed = decoder_kit.feeds(model, np.full((1, 1), 3 + length), length)
        if masked:
            fed["attention_mask"][:, 1:2] = 0  # padding of the prompt
        return fed

    grown = check_lengths(graph, inputs_at, 6, decoder_kit.PAST)
    assert grown.rows == 1 and grown.most == 5 and grown.masked == 1  # zeros behind the end of v need no mask
    assert "2 caches stay on the device, updated in place: 1 row a run, 6 at most, one plan for all" in str(grown)


PLACED = [
    ("concat", "past new", "c", {"axis": 1}),
    ("tensor_scatter", "c new at", "y", {"axis": 1}),
]


@pytest.mark.parametrize("count", [1, 2])
def test_rows_that_are_placed_behind_the_concat_are_right_at_every_length(count):
    """The second batch has a shorter past, and its rows lie where that ends, also after the next runs."""
    inputs = rows(count, at=TensorSpec((2,), DType.I64))
    steps = [*PLACED, ("exp", "y", "e"), ("reduce", "e", "z", {"op": "sum", "axes": (1,)})]
    graph = make_graph(inputs, steps, "z y")
    new = RNG.standard_normal((20, 2, count, 3)).astype(np.float32)

    def inputs_at(length):
        return {"new": new[length], "at": np.array([length, max(0, length - 2)])}

    grown = check_lengths(graph, inputs_at, 8)
    made = {node.name: (node.op, node.attrs.get("in_place")) for node in grown.graph.nodes}
    assert made["concat_c"] == made["tensor_scatter_y"] == ("tensor_scatter", True)
    planned = plan(grown.graph, LAVAPIPE, caches=grown.caches).plan
    assert planned.memory.caches_bytes == 2 * 8 * 3 * 4 and not [c for c in planned.run if isinstance(c, Copy)]


def test_a_concat_that_more_than_its_placing_reads_makes_no_cache():
    inputs = rows(at=TensorSpec((2,), DType.I64), other=(2, 1, 3))
    bounds = {"p": 8}
    assert find_pairs(make_graph(inputs, PLACED, "y"), OPS, bounds)[0].joins == "concat_c"
    for steps in (
        [*PLACED, ("exp", "c", "z")],
        [PLACED[0], ("tensor_scatter", "c other at", "y", {"axis": 1})],
        [PLACED[0], ("tensor_scatter", "c new at", "y", {"axis": 1, "circular": True})],
    ):
        with pytest.raises(UnsupportedError, match="what concat node 'concat_c' makes of it is no output"):
            find_pairs(make_graph(inputs, steps, "y"), OPS, bounds)


# What follows the cache y of 2 x p x 3, or stands beside it, and what more it reads.
RULES = {
    "softmax": [("softmax", "y", "z", {"axis": 1})],
    "log_softmax": [("softmax", "y", "z", {"axis": 1, "log": True})],
    "sum": [("exp", "y", "e"), ("reduce", "e", "z", {"op": "sum", "axes": (1,)})],
    "max": [("sub", "y hundred", "e"), ("reduce", "e", "z", {"op": "max", "axes": (1,), "keepdims": False})],
    "arg_max": [("sub", "y hundred", "e"), ("arg_reduce", "e", "z", {"op": "max", "axis": 1})],
    "sum_by_matmul": [("transpose", "y", "t", {"perm": (0, 2, 1)}), ("exp", "y", "e"), ("matmul", "t e", "z")],
    "cumulative": [("cumulative", "y", "z", {"axis": 1})],
    "norm": [("layer_norm", "y scale shift", "z", {"axis": 2})],
    "last_row": [("gather", "y minus_one", "z", {"axis": 1})],
    "last_rows": [("slice", "y minus_one end one", "z")],
    "first_row": [("slice", "y nought one one", "z")],
    "all_but_the_first": [("slice", "y one end one", "z")],
    "length": [
        ("shape", "y", "s"),
        ("slice", "s one two", "n"),
        ("cast", "n", "f", {"to": "f32"}),
        ("mul", "new f", "z"),
    ],
    "mean_by_length": [
        ("reduce", "y", "r", {"op": "sum", "axes": (1,)}),
        ("shape", "y", "s"),
        ("slice", "s one two", "n"),
        ("cast", "n", "f", {"to": "f32"}),
        ("div", "r f", "z"),
    ],
    "in_front": [("concat", "new y", "z", {"axis": 1})],
    "heads": [
        ("unsqueeze", "y", "u", {"axes": (1,)}),
        ("concat", "u u", "e", {"axis": 1}),
        ("reshape", "e flat", "z"),
    ],
    "attention": [
        ("unsqueeze", "y", "k", {"axes": (1,)}),
        ("unsqueeze", "new", "q", {"axes": (1,)}),
        ("attention", "q k k", "z"),
    ],
}
CONSTANTS = {
    "hundred": np.float32(100),
    "scale": f32(3),
    "shift": f32(3),
    "minus_one": i64(-1),
    "nought": i64(0),
    "one": i64(1),
    "two": i64(2),
    "end": i64(1 << 40),
    "flat": i64(4, -1, 3),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("count", [1, 2])
def test_what_follows_a_cache_is_right_at_every_length(name, count):
    steps = RULES[name]
    graph = make_graph(rows(count), [CACHE, *steps], "z y", CONSTANTS)
    new = RNG.standard_normal((20, 2, count, 3)).astype(np.float32)
    grown = check_lengths(graph, lambda length: {"new": new[length]}, 7 if count == 1 else 8)
    assert grown.rows == count
    (node,) = (n for n in grown.graph.nodes if n.name == "concat_y")
    assert node.op == "tensor_scatter" and node.attrs["in_place"]


REFUSED = {
    "mean": (
        [("reduce", "y", "z", {"op": "mean", "axes": (1,)})],
        r"reduce node 'reduce_z': it takes the mean of rows",
    ),
    "backwards": ([("cumulative", "y", "z", {"axis": 1, "reverse": True})], "it adds rows up from the end"),
    "behind": ([("concat", "y new", "z", {"axis": 1})], "it puts something behind rows that grow"),
    "joined": (
        [("reshape", "y", "z", {"shape": (2, -1)})],
        r"'z' is .* and .*; a dimension that grows is longer by as",
    ),
    "sorted": ([("topk", "y one", "z i", {"axis": 1})], "it works along the axis that grows"),
    "second_row": ([("gather", "y one", "z", {"axis": 1})], "it picks row 1, which is not there where the past is"),
    "two_rows": (
        [("slice", "y nought two one", "z")],
        r"'z' grows at some lengths only|2 rows, which are not all there",
    ),
    "no_rule": (
        [("unsqueeze", "y", "u", {"axes": (1,)}), ("pool2d", "u", "z", {"kind": "max", "kernel": (1, 1)})],
        "no rule for pool2d",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_right_for_all_lengths_is_refused_by_name(name):
    steps, said = REFUSED[name]
    graph = make_graph(rows(), [CACHE, *steps], "z y", CONSTANTS)
    with pytest.raises(UnsupportedError, match=said) as refused:
        check_lengths(graph, lambda length: {"new": np.ones((2, 1, 3), np.float32)}, 8)
    assert "leave bounds out, and each length is planned by itself" in str(refused.value)


def decoder_graph():
    return load_onnx_proto(decoder_kit.decoder(layers=2))


def decoder_plan(capacity=6):
    graph, bounds = decoder_graph(), {decoder_kit.PAST: capacity}
    shapes = {"input_ids": (1, 1), "attention_mask": (1, 1)}
    grown = grown_graph(graph, OPS, find_pairs(graph, OPS, bounds), bounds, shapes, {})
    return grown, plan(grown.graph, LAVAPIPE, caches=grown.caches).plan


def test_a_run_writes_the_rows_of_caches_alone():
    grown, planned = decoder_plan()
    assert planned.caches == grown.caches and len(grown.caches) == 4
    assert not planned.outputs.keys() & {
        pair.present for pair in find_pairs(decoder_graph(), OPS, {decoder_kit.PAST: 6})
    }
    assert planned.memory.caches_bytes == 4 * 2 * 6 * 6 * 4
    for name in planned.caches:
        buffer = planned.inputs[name][1].buffer
        assert planned.buffers[buffer][1] == "device"
        writers = [
            c
            for c in planned.run
            if isinstance(c, Launch | Copy)
            for r, a in c.accesses
            if r.buffer == buffer and a != "r"
        ]
        (writer,) = writers
        (node,) = (node for node in planned.nodes if node.name == writer.node)
        assert node.call.op == "tensor_scatter" and node.dispatches == 1
    (row,) = (row for row in memory_table(planned).rows if row["what"] == "caches")
    assert (row["bytes"], row["note"]) == (1152, "updated in place")


def test_caches_are_found_by_the_dimension_that_grows():
    graph = decoder_graph()
    pairs = find_pairs(graph, OPS, {decoder_kit.PAST: 9})
    assert [(pair.past, pair.present, pair.axis, pair.appends) for pair in pairs] == [
        (f"past_key_values.{i}.{what}", f"present.{i}.{what}", 2, True) for i in (0, 1) for what in ("key", "value")
    ]
    with pytest.raises(InputError, match=r"has a dimension 'past_sequence' .did you mean 'past_sequence_length'"):
        find_pairs(graph, OPS, {"past_sequence": 9})
    other = make_graph(rows(), [CACHE, ("exp", "past", "z")], "z y", {})
    with pytest.raises(
        UnsupportedError, match=r"has no cache, an input that .* along p .*'past': exp node 'exp_z' reads"
    ):
        find_pairs(other, OPS, {"p": 9})
    inner = make_graph(rows(), [CACHE, ("exp", "y", "z")], "z", {})
    with pytest.raises(UnsupportedError, match="what concat node 'concat_y' makes of it is no output"):
        find_pairs(inner, OPS, {"p": 9})


def test_a_dimension_that_grows_unsaid_is_named():
    graph = make_graph(
        rows(mask=("total",)), [CACHE, ("transpose", "y", "t", {"perm": (0, 2, 1)}), ("add", "t mask", "z")], "z y"
    )
    shapes = {"new": (2, 1, 3), "mask": (1,)}
    with pytest.raises(GraphError, match=r"do not broadcast.*; if total grows with the past, give it a bound too"):
        grown_graph(graph, OPS, find_pairs(graph, OPS, {"p": 8}), {"p": 8}, {**shapes, "mask": (2,)}, {}, 1)

    bounds = {"p": 8, "total": 8}
    grown = grown_graph(graph, OPS, find_pairs(graph, OPS, bounds), bounds, shapes, {})
    assert grown.offsets["mask"] == {0: 1} and grown.graph.inputs["mask"] == TensorSpec((8,), DType.F32)


def test_more_rows_than_the_bound_are_refused_with_both_numbers():
    graph = make_graph(rows(9), [CACHE], "y")
    with pytest.raises(InputError, match="a run brings 9 rows, and the caches hold 8"):
        grown_graph(graph, OPS, find_pairs(graph, OPS, {"p": 8}), {"p": 8}, {"new": (2, 9, 3)}, {})


def test_what_is_updated_in_place_is_read_by_nothing_else():
    steps = [("tensor_scatter", "x u at", "y", {"axis": 1, "in_place": True}), ("exp", "x", "z")]
    graph = make_graph({"x": (1, 5, 3), "u": (1, 1, 3)}, steps, "y z", {"at": i64(2)})
    with pytest.raises(GraphError, match=r"'tensor_scatter_y': it updates 'x' in place, and exp node 'exp_z' reads it"):
        plan(graph, LAVAPIPE)
    constant = make_graph({"u": (1, 1, 3)}, steps[:1], "y", {"at": i64(2), "x": f32(1, 5, 3)})
    with pytest.raises(GraphError, match=r"it updates 'x' in place, and it is constant; leave in_place out"):
        plan(constant, LAVAPIPE)


def test_a_prompt_takes_attention_where_it_would_without_a_bound(monkeypatch):
    monkeypatch.setattr(decoder_kit, "SIZE", 64)
    monkeypatch.setattr(decoder_kit, "WIDTH", 256)
    graph, bounds = load_onnx_proto(decoder_kit.decoder(layers=1, positions="learned")), {decoder_kit.PAST: 64}
    device = load_device("h200")
    shapes = {"input_ids": (1, 32), "attention_mask": (1, 32)}
    grown = grown_graph(graph, OPS, find_pairs(graph, OPS, bounds), bounds, shapes, {})
    past = {f"past_key_values.0.{what}": (1, 2, 32, 64) for what in ("key", "value")}
    plain = plan(graph, device, None, {"input_ids": (1, 32), "attention_mask": (1, 64), **past}).plan
    planned = plan(grown.graph, device, caches=grown.caches).plan
    taken = [[node.call.op for node in made.nodes].count("attention") for made in (plain, planned)]
    assert taken == [1, 1]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder_kit.decoder(layers=1).SerializeToString())
    return path


@pytest.mark.long
def test_explain_and_show_say_what_is_planned_once(model):
    ask = ("--bound", f"{decoder_kit.PAST}=16", "--dim", "sequence_length=2", "-d", "lavapipe")
    code, out, err = vkconv("explain", model, *ask)
    said = "2 caches stay on the device, updated in place: 2 rows a run, 16 at most, one plan for all lengths;"
    assert code == 0 and said in out, err
    (row,) = (line for line in out.splitlines() if line.startswith("present.0.key"))
    assert "tensor_scatter:x=1x2x16x6,updates=1x2x2x6,at=1:i64,axis=2,in_place=1" in row
    data = json.loads(vkconv("explain", model, *ask, "--json")[1])
    assert data["caches"] == {"inputs": ["past_key_values.0.key", "past_key_values.0.value"], "rows": 2, "bound": 16}
    assert data["memory"]["caches_bytes"] == 2 * 2 * 16 * 6 * 4
    code, out, err = vkconv("show", model, "--memory", *ask)
    assert code == 0 and "updated in place" in out, err


@pytest.mark.long
def test_bounds_are_held_against_the_model(model):
    dims = ("--dim", "sequence_length=1", "-d", "lavapipe")
    for ask, said in (
        (
            ("explain", model, "--bound", "past=9", *dims),
            "'past' (did you mean 'past_sequence_length'?); the open",
        ),
        (("explain", model, "--bound", decoder_kit.PAST, *dims), "is not NAME=ROWS; write for example --bound"),
        (("explain", model, *("--bound", "a=1") * 2, *dims), "--bound 'a=1' is there twice"),
        (("explain", "relu:x=3", "--bound", "a=1"), "--bound is for models; nothing of a call grows"),
        (("show", model, "--bound", "a=1"), "--bound says how to plan a model for the memory it takes"),
        (
            ("explain", model, "--bound", f"{decoder_kit.PAST}=1025", *dims),
            "indices span 1024 to 1024; the axis has 1024",
        ),
        (("run", model, "--bound", "a=1", "--profile"), "whose caches grow, and --profile cannot follow; leave it out"),
    ):
        code, _, err = vkconv(*ask)
        assert code == 2 and said in err, (ask, err)


def test_a_cache_that_would_be_updated_in_a_copy_is_refused():
    inputs = {"past": TensorSpec((2, "p", 3), DType.I8), "new": TensorSpec((2, 1, 3), DType.I8)}
    graph = make_graph(inputs, [CACHE], "y")
    grown = grown_graph(graph, OPS, find_pairs(graph, OPS, {"p": 8}), {"p": 8}, {"new": (2, 1, 3)}, {})
    with pytest.raises(GraphError, match=r"no node updates the cache 'past' .2x8x3:i8. where it lies"):
        plan(grown.graph, LAVAPIPE, caches=grown.caches)


def test_integers_of_caches_are_not_looked_at_by_the_host():
    """The checks of inputs read them on the host, where caches never are."""
    inputs = {"past": TensorSpec((2, "p", 3), DType.I64), "new": TensorSpec((2, 1, 3), DType.I64)}
    graph = make_graph(inputs, [CACHE], "y")
    grown = grown_graph(graph, OPS, find_pairs(graph, OPS, {"p": 8}), {"p": 8}, {"new": (2, 1, 3)}, {})
    (check,) = plan(grown.graph, LAVAPIPE, caches=grown.caches).plan.checks
    assert set(check.reads) == {"updates", "at"}
