"""First launches by images: what is cut, what each piece needs, and that it is the same by definition."""

import itertools

import numpy as np
import pytest
from graph_kit import draw, evaluate, f32, made_up_device, make_bound, make_graph
from memory_kit import launch

from vkconv.core import DType, UsageError
from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan import early
from vkconv.plan.arriving import Arrived, Early, find_ends
from vkconv.plan.bound import widen
from vkconv.plan.commands import Barrier, Launch
from vkconv.plan.explain import explain_plan
from vkconv.plan.order import side_by_side, step_levels
from vkconv.plan.per_image import _APART, _BESIDE_WEIGHTS, of_images
from vkconv.plan.planner import Options, plan, rewritten

H200 = load_device("h200")
W = {"w1": f32(16, 4, 3, 3, seed=1), "w2": f32(16, 16, 3, 3, seed=2), "w3": f32(8, 16, 1, 1, seed=3)}
BLOCK = [
    ("conv2d", "x w1", "a", {"padding": (1,)}),
    ("pool2d", "a", "b", {"kind": "max", "kernel": (2, 2), "stride": (2, 2)}),
    ("conv2d", "b w2", "c", {"padding": (1,)}),
    ("add", "b c", "d"),
    ("conv2d", "d w3", "e"),
]
TWICE = ("concat", "e e", "y", {"axis": 0})


@pytest.fixture
def all_of_it(monkeypatch):
    """Inputs that take so long to come that all is cut which can be."""
    row = early.EARLY.of(H200)
    monkeypatch.setattr(early.EARLY, "of", lambda device: type(row)(4, 0, 1e-6, 0.5))


def planned(nodes=(*BLOCK, TWICE), outputs="y b", images=8, device=H200, **options):
    options = {"staging": "streamed", "pieces": 4, **options}
    return plan(make_graph({"x": (images, 4, 16, 16)}, nodes, outputs, W), device, Options(**options)).plan


def cut_nodes(made):
    return {n.name for n in made.nodes if n.name.endswith("/0")}


def references(call, arrays):
    with np.errstate(all="ignore"):
        wide = {name: widen(array) for name, array in arrays.items() if array is not None}
        return OPS[call.op].reference(call, dict.fromkeys(call.operands) | wide)


@pytest.mark.parametrize("name", sorted({*_APART, *_BESIDE_WEIGHTS, "add", "where", "cast", "chain", "relu", "less"}))
def test_calls_of_one_image_are_the_parts_of_those_of_all(name):
    """By definition: of every case of the op that can be cut, in each choice of operands that hold images."""
    op, cut = OPS[name], 0
    for call in (parse_call(text, OPS) for text in op.cases):
        images = next(iter(call.outputs.values())).dims[:1]
        specs = {k: spec for k, spec in call.operands.items() if spec is not None}
        if not images or images[0] < 2 or call.elements > 20_000:
            continue
        arrays = draw(specs)
        held = [k for k, spec in specs.items() if spec.dims[:1] == images]
        wanted = None
        for holds in itertools.chain.from_iterable(itertools.combinations(held, n) for n in (1, 2, 3)):
            one = of_images(call, op, holds, images[0], 1)
            if one is None:
                continue
            cut += 1
            wanted = wanted or references(call, arrays)
            for image in range(images[0]):
                part = {k: v[image : image + 1] if k in holds else v for k, v in arrays.items()}
                for want, found in zip(wanted, references(one, part), strict=True):
                    np.testing.assert_allclose(widen(found), widen(want[image : image + 1]), rtol=1e-9, atol=1e-9)
    assert cut > 0


@pytest.mark.parametrize(
    "text",
    [
        "concat:x0=4x3,x1=4x3,axis=0",
        "softmax:x=4x3,axis=0",
        "transpose:x=4x4,perm=1x0",
        "conv_reduce:x=4x3x8x8,w=8x3x3x3,axes=0x2x3",
        "reduce:x=4x4,op=sum,axes=0",
        "add:a=4x4,b=4",
        "conv2d:x=4x4x4x4,w=4x4x1x1",
    ],
)
def test_what_mixes_images_stays_whole(text):
    call = parse_call(text, OPS)
    held = [name for name, spec in call.operands.items() if spec is not None]
    assert of_images(call, OPS[call.op], held, 4, 1) is None


def test_first_nodes_are_cut_until_one_mixes_images(all_of_it):
    made = planned()
    assert cut_nodes(made) == {"conv2d_a/0", "pool2d_b/0", "conv2d_c/0", "conv2d_e/0"}
    dispatches = {n.name: n.dispatches for n in made.nodes if n.name.partition("/")[2].startswith("images")}
    assert dispatches == {**{f"x/images{i}": 0 for i in range(4)}, "pool2d_b/images": 0, "conv2d_e/images": 0}
    assert "images 2 to 3 of 8" in next(n.remark for n in made.nodes if n.name == "conv2d_a/1")
    assert (made.early.x, made.early.pieces, len(made.early.ends)) == ("x", 4, 3)
    assert "as 4 pieces of 'x' come" in explain_plan(made).title


def assert_same_meaning(before, after):
    inputs = draw(before.inputs)
    for want, found in zip(evaluate(before, inputs), evaluate(after, inputs), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-9)


def test_the_graph_means_what_it_meant(all_of_it):
    nodes, outputs = [*BLOCK, ("add", "b b", "g"), TWICE], "y b g e"
    before = make_bound({"x": (6, 4, 16, 16)}, nodes, outputs, W)
    after, _ = rewritten(before, H200, Options(staging="streamed", pieces=4))
    assert after.pieces.count == 3
    assert_same_meaning(before, after)


@pytest.mark.parametrize("dtype", [None, "f16"])
def test_each_part_of_a_run_needs_no_more_than_has_come(all_of_it, dtype):
    made = planned(dtype=dtype)
    port, nbytes = made.port("x").buffer, made.early.nbytes
    assert nbytes == 8 * 4 * 16 * 16 * (2 if dtype else 4)
    here, parts = 0, [[]]
    for command in made.commands():
        if isinstance(command, Arrived):
            parts.append([])
        elif not isinstance(command, Barrier):
            parts[-1].append(command)
    ends = [end for _, end in made.early.ends]
    assert ends == [nbytes // 4, nbytes // 2, 3 * nbytes // 4] and len(parts) == 4
    for part, end in zip(parts, [*ends, nbytes], strict=True):
        read = [r.offset + r.nbytes for c in part for r, _ in c.accesses if r.buffer == port]
        assert here < max(read) <= end
        here = end
    assert not any(isinstance(command, Arrived) for command in made.commands(there={"x"}))


def test_pieces_share_weights_and_memory(all_of_it):
    whole, cut = planned(pieces=1), planned()
    assert whole.early is None and not whole.textures
    assert cut.memory.weights_bytes == whole.memory.weights_bytes
    assert cut.memory.activations_bytes <= whole.memory.activations_bytes


@pytest.mark.parametrize(
    ("change", "cut"),
    [
        ({}, 4),
        ({"images": 6}, 3),
        ({"images": 7}, 0),
        ({"images": 1}, 0),
        ({"pieces": 2}, 2),
        ({"pieces": 1}, 0),
        ({"staging": True}, 0),
        ({"staging": False}, 0),
        ({"share_memory": False}, 0),
        ({"passes": False}, 0),
        ({"skip_passes": ("cut_early",)}, 0),
        ({"skip_passes": ("elide_copies",)}, 0),
        ({"routes": {"node:conv2d_a": "direct"}}, 0),
        ({"device": made_up_device(minStorageBufferOffsetAlignment=1 << 15)}, 0),
    ],
)
def test_what_decides_how_many_pieces_there_are(all_of_it, change, cut):
    made = planned(**change)
    assert (made.early.pieces if made.early else 0) == cut


@pytest.mark.parametrize("pieces", [0, -1, 1.5, True, "2"])
def test_a_number_of_pieces_is_one(pieces):
    with pytest.raises(UsageError, match=r"pieces is .*; it is how many"):
        planned(pieces=pieces)


def test_a_named_node_stays_whole_and_those_before_it_do_not(all_of_it):
    made = planned(routes={"node:conv2d_c": "direct"})
    assert cut_nodes(made) == {"conv2d_a/0", "pool2d_b/0"}


def test_the_policy_leaves_small_inputs_and_other_devices_alone():
    assert planned(pieces=None).early is None
    assert planned(pieces=None, device=load_device("lavapipe")).early is None
    w = {"w": f32(64, 3, 7, 7)}
    nodes = [("conv2d", "x w", "y", {"stride": (2,), "padding": (3,)})]
    for images, ends in ((32, 2), (8, 0)):
        graph = make_graph({"x": (images, 3, 224, 224)}, nodes, "y", w)
        found = plan(graph, H200, Options(dtype="f16")).plan.early
        assert len(found.ends if found else ()) == ends


@pytest.mark.parametrize("dtype", [None, "f16"])
def test_the_first_node_of_the_first_piece_waits_for_a_part_of_it(dtype, monkeypatch):
    row = early.EARLY.of(H200)
    monkeypatch.setattr(early.EARLY, "of", lambda device: type(row)(4, 0, 1e-6, 0.5, 2))
    made = planned(pieces=2, dtype=dtype)
    stems = [n.name for n in made.nodes if n.name.startswith("conv2d_a/")]
    assert stems == ["conv2d_a/0.0", "conv2d_a/0.1", "conv2d_a/images0", "conv2d_a/1"]
    assert cut_nodes(made) - {"b to f32/0"} == {"pool2d_b/0", "conv2d_c/0", "conv2d_e/0"}
    assert next(n.dispatches for n in made.nodes if n.name == "conv2d_a/images0") == 0
    remarks = {n.name: n.remark for n in made.nodes}
    assert "images 2 to 3 of 8" in remarks["conv2d_a/0.1"] and "images 0 to 3 of 8" in remarks["pool2d_b/0"]
    nbytes, port = made.early.nbytes, made.port("x").buffer
    assert [end for _, end in made.early.ends] == [nbytes // 4, nbytes // 2]
    assert "as 3 pieces of 'x' come" in explain_plan(made).title and made.early.chunk_bytes(1) <= nbytes // 4
    needed = [[]]
    for command in made.commands():
        if isinstance(command, Arrived):
            needed.append([])
        elif not isinstance(command, Barrier):
            needed[-1] += [r.offset + r.nbytes for r, _ in command.accesses if r.buffer == port]
    assert [max(read) for read in needed] == [nbytes // 4, nbytes // 2, nbytes]


def test_the_graph_with_parts_means_what_it_meant(monkeypatch):
    row = early.EARLY.of(H200)
    monkeypatch.setattr(early.EARLY, "of", lambda device: type(row)(4, 0, 1e-6, 0.5, 3))
    nodes, outputs = [*BLOCK, ("add", "a x2", "g"), TWICE], "y a g"
    weights = {**W, "x2": f32(1, 16, 1, 1, seed=4)}
    before = make_bound({"x": (12, 4, 16, 16)}, nodes, outputs, weights)
    after, _ = rewritten(before, H200, Options(staging="streamed", pieces=2))
    assert after.pieces.count == 6
    assert_same_meaning(before, after)


def test_parts_that_would_not_be_whole_images_are_none(monkeypatch):
    row = early.EARLY.of(H200)
    monkeypatch.setattr(early.EARLY, "of", lambda device: type(row)(4, 0, 1e-6, 0.5, 3))
    assert "conv2d_a/0" in cut_nodes(planned(pieces=2)), "four images of a piece"


def test_only_as_much_is_cut_as_covers_what_is_coming(monkeypatch):
    row = early.EARLY.of(H200)
    monkeypatch.setattr(early.EARLY, "of", lambda device: type(row)(4, 0, 40.0, 0.5))
    assert cut_nodes(planned(images=64)) == {"conv2d_a/0"}


def test_another_input_is_awaited_whole(all_of_it):
    nodes = [*BLOCK[:2], ("add", "b z", "y")]
    graph = make_graph({"z": (8, 16, 8, 8), "x": (8, 4, 16, 16)}, nodes, "y", W)
    made = plan(graph, H200, Options(staging="streamed", pieces=4)).plan
    assert made.early.x == "x" and cut_nodes(made) == {"conv2d_a/0", "pool2d_b/0"}
    before = made.run[: made.early.ends[-1][0]]
    read = {r.buffer for c in before if isinstance(c, Launch) for r, _ in c.binds}
    assert "input:x" in read and "input:z" not in read


def test_ends_are_where_more_is_read():
    reads = [launch(f"n{i}", [(i * 64, 64)]) for i in range(4)]
    assert find_ends(reads, "a", (), 256, 4) == ((1, 64), (2, 128), (3, 192))
    assert find_ends(reads, "a", (), 256, 2) == ((2, 128),)
    assert find_ends(reads[::-1], "a", (), 256, 4) == ()
    assert find_ends([reads[0], reads[2], reads[1]], "a", (), 256, 4) == ((1, 64),)
    assert find_ends(reads, "other", ("a",), 256, 4) == ()


def test_pieces_end_with_a_chunk():
    for nbytes, pieces, usual in (
        (9633792, 4, 2097152),
        (9633792, 3, 2097152),
        (1000, 4, 2097152),
        (8 << 20, 2, 1 << 20),
    ):
        made = Early("x", pieces, nbytes, ())
        chunk = made.chunk_bytes(usual)
        each = -(-nbytes // pieces // chunk) if chunk <= nbytes // pieces else 1
        assert 0 <= chunk * each - nbytes / pieces < each and chunk <= max(1.5 * usual, nbytes / pieces)


def test_steps_and_commands_of_a_piece_stay_together():
    reads, writes = [["x"], ["a"], ["x"], ["b"], ["c"]], [["a"], ["b"], ["c"], ["d"], ["e"]]
    assert step_levels(reads, writes, [0, 0, 1, 1, 1]) == [0, 1, 2, 2, 3]
    commands = [launch("a0", [], [(0, 4)]), launch("a1", [(0, 4)], [(8, 4)])]
    commands += [launch("b0", [], [(16, 4)]), launch("b1", [(16, 4)], [(24, 4)])]
    order = [c.node for c in side_by_side(commands, lambda c: c.node[0] == "b") if not isinstance(c, Barrier)]
    assert order == ["a0", "a1", "b0", "b1"]
    assert [c.node for c in side_by_side(commands) if not isinstance(c, Barrier)] == ["a0", "b0", "a1", "b1"]


def test_caches_are_not_cut(all_of_it):
    graph = make_graph({"x": (8, 4, 16, 16)}, BLOCK[:2], "b", W)
    bound = make_bound({"x": (8, 4, 16, 16)}, BLOCK[:2], "b", W)
    made, _ = early.cut_early(bound, OPS, H200, "streamed", 4, (), ("x",))
    assert made.pieces is None and graph.inputs["x"].dtype is DType.F32
