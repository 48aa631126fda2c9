"""Local functions of ONNX models: what they come to is known, and bounded, before they are inlined."""

import random
import time
from pathlib import Path

import numpy as np
import pytest
from required import required

required("onnx")
import onnx  # noqa: E402
import onnx.inliner  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

from vkconv.core import MAX_NODES, ModelError  # noqa: E402
from vkconv.graph.onnx import functions, load_onnx, load_onnx_proto, proto  # noqa: E402

IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("l", 1)]


def function(name: str, nodes: list[onnx.NodeProto], attributes: tuple[str, ...] = ()) -> onnx.FunctionProto:
    return helper.make_function("l", name, ["x"], ["y"], nodes, IMPORTS, attributes)


def in_a_row(steps: list[tuple[str, str]], **attributes: object) -> list[onnx.NodeProto]:
    """Nodes of these ops and domains, each on the one before, from x to y."""
    names = ["x", *(f"t{i}" for i in range(len(steps) - 1)), "y"]
    return [
        helper.make_node(op, [names[i]], [names[i + 1]], domain=domain, **(attributes if domain else {}))
        for i, (op, domain) in enumerate(steps)
    ]


def model(nodes: list[onnx.NodeProto], made: list[onnx.FunctionProto], name: str = "x") -> onnx.ModelProto:
    for node in nodes:
        for i, value in enumerate(node.input):
            node.input[i] = name if value == "x" else value
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, functions=made, opset_imports=IMPORTS, ir_version=8)


def doubling(levels: int) -> onnx.ModelProto:
    """A model of 2^levels nodes: each function calls the one before it twice."""
    made = [function("f0", in_a_row([("Relu", ""), ("Relu", "")]))]
    made += [function(f"f{i}", in_a_row([(f"f{i - 1}", "l")] * 2)) for i in range(1, levels)]
    return model(in_a_row([(f"f{levels - 1}", "l")]), made)


def saved(path: Path, made: onnx.ModelProto) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def test_a_million_nodes_of_1300_bytes_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto, "run_apart", None)  # not even begun
    path = saved(tmp_path / "a.onnx", doubling(20))
    assert path.stat().st_size < 1400
    started = time.process_time()
    with pytest.raises(ModelError, match=f"has 1048576 nodes once they are inlined, vkconv takes {MAX_NODES}"):
        load_onnx(path)
    with pytest.raises(ModelError, match="has 1048576 nodes"):
        load_onnx_proto(doubling(20))
    assert time.process_time() - started < 1


@pytest.mark.long
def test_as_many_nodes_as_a_model_may_have_are_taken(tmp_path: Path) -> None:
    levels = MAX_NODES.bit_length() - 1
    assert len(load_onnx(saved(tmp_path / "a.onnx", doubling(levels))).nodes) == MAX_NODES
    with pytest.raises(ModelError, match="nodes once they are inlined"):
        load_onnx(saved(tmp_path / "a.onnx", doubling(levels + 1)))


def test_a_model_in_memory_has_the_same_limit_of_nodes() -> None:
    nodes = in_a_row([("Relu", "")] * (MAX_NODES + 1))
    with pytest.raises(ModelError, match=f"has {MAX_NODES + 1} nodes, vkconv takes {MAX_NODES}"):
        load_onnx_proto(model(nodes, []))


@pytest.mark.long
def test_functions_one_in_another_have_a_limit(tmp_path: Path) -> None:
    def chain(levels: int) -> onnx.ModelProto:
        made = [function("f0", in_a_row([("Relu", "")]))]
        made += [function(f"f{i}", in_a_row([(f"f{i - 1}", "l")])) for i in range(1, levels)]
        return model(in_a_row([(f"f{levels - 1}", "l")]), made)

    assert len(load_onnx(saved(tmp_path / "a.onnx", chain(50))).nodes) == 1
    for levels in (functions.MAX_DEPTH + 1, 20_000):
        with pytest.raises(ModelError, match="functions call functions 101 deep or more; vkconv takes 100"):
            load_onnx(saved(tmp_path / "a.onnx", chain(levels)))


def test_functions_that_call_each_other_are_refused() -> None:
    made = [function("a", in_a_row([("b", "l")])), function("b", in_a_row([("Relu", ""), ("a", "l")]))]
    with pytest.raises(ModelError, match=r"the function '[ab]' calls itself"):
        functions.check_growth(model(in_a_row([("a", "l")]), made))


def test_an_attribute_that_many_nodes_read_counts_for_each() -> None:
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="big")
    body = []
    for i in range(1000):
        node = onnx.NodeProto()
        node.CopyFrom(constant)
        node.output[0] = f"c{i}"
        body.append(node)
    body.append(helper.make_node("Add", ["x", "c0"], ["y"]))
    tensor = numpy_helper.from_array(np.zeros(100_000, np.float32), "t")
    outer = in_a_row([("inner", "l")])
    outer[0].attribute.add(name="big", type=onnx.AttributeProto.TENSOR, ref_attr_name="bigger")
    made = [function("inner", body, ("big",)), function("outer", outer, ("bigger",))]
    whole = model(in_a_row([("outer", "l")], bigger=tensor), made)
    with pytest.raises(ModelError, match=r"has 4000\d\d\d\d\d bytes once they are inlined; vkconv takes 675\d+ of"):
        functions.check_growth(whole)


def test_a_long_name_counts_wherever_it_is_copied_to() -> None:
    body = [helper.make_node("Add", ["x", "x"], [f"t{i}"]) for i in range(1000)]
    made = [function("f", [*body, helper.make_node("Relu", ["x"], ["y"])])]
    with pytest.raises(ModelError, match=r"has 2001\d\d\d\d\d bytes once"):
        functions.check_growth(model(in_a_row([("f", "l")]), made, name="x" * 100_000))


@pytest.mark.parametrize("seed", range(20))
def test_the_nodes_are_those_that_onnx_makes_and_the_bytes_no_fewer(seed: int) -> None:
    rng = random.Random(seed)
    made: list[onnx.FunctionProto] = []
    for i in range(rng.randint(1, 8)):
        known = [("Relu", ""), ("Neg", ""), *((f.name, "l") for f in made)]
        made.append(function(f"f{i}", in_a_row(rng.choices(known, k=rng.randint(1, 4)))))
    nodes = in_a_row(rng.choices([("Exp", ""), *((f.name, "l") for f in made)], k=3))
    whole = model(nodes, made)
    inlined = onnx.inliner.inline_local_functions(whole)
    by_key = {functions._key(f.domain, f.name, f): f for f in made}
    sizes: dict[functions._Key, functions._Size] = {}
    for key in functions._callees_first(whole.graph.node, by_key):
        sizes[key] = functions._size(by_key[key].node, functions._parameters(by_key[key]), by_key, sizes)
    size = functions._size(whole.graph.node, frozenset(), by_key, sizes)
    assert size.nodes == len(inlined.graph.node)
    nbytes = sum(node.ByteSize() for node in inlined.graph.node)
    assert nbytes <= size.nbytes <= 3 * nbytes
