"""The list of passes: each can be left out but for the required ones, and what each does can be read."""

import difflib
import functools

import numpy as np
import pytest
from every_pass import NETWORKS, OPTIONAL, acting, launches
from graph_kit import draw, evaluate, f32, made_up_device, make_graph

from vkconv.core import UsageError
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.plan.bound import bind
from vkconv.plan.pass_dump import dump_passes
from vkconv.plan.passes import ELIDE_COPIES, PASSES, skipped_passes
from vkconv.plan.planner import Options, plan, rewritten

DEVICES = {name: load_device(name) for name in ("lavapipe", "mali-g57", "h200")}
LAVAPIPE = DEVICES["lavapipe"]
OTHERS = [name for name in DEVICES if name != "lavapipe"]
NAMES = [entry.name for entry in PASSES]
REWRITING = [entry.name for entry in PASSES if entry.run]


def texts(folder):
    """The lines of the files of a dump, by their names."""
    return {path.name: path.read_text().splitlines() for path in sorted(folder.iterdir())}


def test_the_list_says_what_there_is():
    assert len(set(NAMES)) == len(NAMES)
    assert all(entry.doc.endswith(".") and len(entry.doc) < 100 and "\n" not in entry.doc for entry in PASSES)
    required = ["spell_layouts", "split_matmul", "widen_bytes", "set_types"]
    assert [entry.name for entry in PASSES if entry.required] == required


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_optional_pass_has_something_to_do_in_some_network(device):
    blocks = {"fuse_inverted_residual", "fuse_separable", "fuse_squeeze_excite"}
    elsewhere = {
        "h200": blocks,
        "lavapipe": {"fuse_attention", "fuse_prologue", *blocks},
        "mali-g57": {"fuse_prologue"},
    }
    # Inputs of these networks are small: what is cut of large ones is in tests/pure/test_early.py.
    absent = {"cut_early"} | next(elsewhere[name] for name, other in DEVICES.items() if other is device)
    assert {name for graph in NETWORKS.values() for name in acting(graph, device)} == set(OPTIONAL) - absent


@functools.cache
def computed(network):
    """A network as a graph of calls, inputs, and what it computes from them."""
    graph = bind(NETWORKS[network], OPS)
    arrays = draw(graph.inputs)
    return graph, arrays, evaluate(graph, arrays)


@pytest.mark.long
@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize(
    "device", [pytest.param("lavapipe"), *(pytest.param(n, marks=pytest.mark.long) for n in OTHERS)]
)
def test_a_graph_computes_the_same_without_a_pass(name, device):
    options, device = Options(skip_passes=(name,)), DEVICES[device]
    for network, graph in NETWORKS.items():
        ran, (before, arrays, expected) = [], computed(network)
        after, _ = rewritten(before, device, options, lambda entry, graph, ran=ran: ran.append(entry.name))
        assert ran == [other for other in REWRITING if other != name]
        for want, got in zip(expected, evaluate(after, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
        assert plan(graph, device, options).plan.nodes


def test_copies_are_made_where_the_pass_that_saves_them_is_left_out():
    graph = NETWORKS["tokens"]
    assert launches(graph, LAVAPIPE, skip_passes={ELIDE_COPIES}) == launches(graph, LAVAPIPE) + 1


def test_no_passes_at_all_are_all_optional_ones_left_out():
    for graph in NETWORKS.values():
        none, each = (
            plan(graph, LAVAPIPE, options).plan for options in (Options(passes=False), Options(skip_passes=OPTIONAL))
        )
        assert none.nodes == each.nodes and none.run == each.run and none.memory == each.memory
        assert [node.call.op for node in none.nodes] == [node.op for node in graph.nodes]


def test_what_a_pass_that_is_left_out_would_say_is_not_said():
    graph = NETWORKS["channels last"]
    assert rewritten(bind(graph, OPS), LAVAPIPE, Options())[1].keys() == {"tanh_t"}
    assert not rewritten(bind(graph, OPS), LAVAPIPE, Options(skip_passes=("assign_layouts",)))[1]


def test_a_required_pass_runs_without_the_others():
    small = made_up_device("mali-g715", maxStorageBufferRange=24576)
    graph = make_graph({"x": (5, 32)}, [("matmul", "x w", "y")], "y", {"w": f32(32, 300)})
    ops = [node.call.op for node in plan(graph, small, Options(passes=False)).plan.nodes]
    assert ops == ["matmul"] * 5 + ["concat"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["fuse_chan"],
            r"'fuse_chan' does not exist \(did you mean 'fuse_chain'\?\); .* are assign_layouts, .*elide_copies$",
        ),
        (["fold_pad", "set_types"], r"'set_types' is required; those that can be left out are assign_layouts, "),
        (["split_matmul"], "'split_matmul' is required"),
        ([""], "'' does not exist"),
        ("fold_bat", r"'fold_bat' does not exist"),
    ],
)
def test_what_cannot_be_left_out_is_refused(names, said):
    for ask in (skipped_passes, lambda names: plan(NETWORKS["image"], LAVAPIPE, Options(skip_passes=names))):
        with pytest.raises(UsageError, match=said):
            ask(names)


def test_one_name_may_stand_alone():
    assert Options(skip_passes="fold_pad").skipped == {"fold_pad"}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.long
def test_a_dump_has_the_graph_after_each_pass_and_differs_where_one_acted(network, tmp_path):
    graph = NETWORKS[network]
    files = dump_passes(graph, LAVAPIPE, Options(), tmp_path)
    assert files == ["00-as_written.txt", *(f"{NAMES.index(name) + 1:02d}-{name}.txt" for name in REWRITING)]
    assert list(texts(tmp_path)) == files
    bound = bind(graph, OPS)
    last, acted = texts(tmp_path)[files[0]], []
    assert last[0] == f"# as_written: {len(bound.nodes)} nodes"
    for name, entry in zip(files[1:], REWRITING, strict=True):
        lines = texts(tmp_path)[name]
        assert lines[0].startswith(f"# {entry}: ")
        assert ("nothing changed" in lines[0]) == (lines[1:] == last[1:])
        if lines[1:] != last[1:]:
            acted.append(entry)
        last = lines
    assert [name for name in acting(graph, LAVAPIPE) if name != ELIDE_COPIES] == acted
    after, _ = rewritten(bound, LAVAPIPE, Options())
    assert [line.partition(":")[0] for line in last[1:] if "->" in line] == [node.name for node in after.nodes]


def test_a_line_says_what_a_node_is_and_only_rewritten_ones_differ(tmp_path):
    nodes = [("conv2d", "x w", "c"), ("relu", "c", "r"), ("pool2d", "r", "y", {"kind": "max", "kernel": (2, 2)})]
    graph = make_graph({"x": (1, 4, 9, 8)}, nodes, "y", {"w": f32(4, 4, 3, 3)})
    dump_passes(graph, LAVAPIPE, Options(), tmp_path)
    after = texts(tmp_path)["25-fuse_activation.txt"]
    assert after[0] == "# fuse_activation: 3 nodes before, 2 after: 1 rewritten, 1 gone"
    assert after[1:3] == ["input x: 1x4x9x8:f32", "constant w: 4x4x3x3:f32"]
    assert after[3] == "conv2d_c: conv2d:x=1x4x9x8,w=4x4x3x3,act=relu,dtype=f32; x=x w=w -> y=r"
    assert after[-1] == "output y: 1x4x6x5:f32"
    changed = [
        line
        for line in difflib.ndiff(texts(tmp_path)["24-fuse_residual.txt"][1:], after[1:])
        if line.startswith(("-", "+"))
    ]
    assert [line[:2] + line[2:].partition(":")[0] for line in changed] == ["- conv2d_c", "+ conv2d_c", "- relu_r"]


def test_a_later_dump_replaces_all_of_an_earlier_one(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    before = dump_passes(NETWORKS["image"], LAVAPIPE, Options(), tmp_path / "new" / "folder")
    files = dump_passes(NETWORKS["image"], LAVAPIPE, Options(skip_passes=("fold_pad",)), tmp_path / "new" / "folder")
    assert set(before) - set(files) == {"09-fold_pad.txt"}
    assert list(texts(tmp_path / "new" / "folder")) == files
    dump_passes(NETWORKS["image"], LAVAPIPE, Options(), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_names_that_a_line_cannot_hold_are_quoted(tmp_path):
    graph = Graph({"x = 1": TensorSpec((2, 3))}, ("y",), (Node("a\nb", "tanh", ("x = 1",), ("y",)),))
    dump_passes(graph, LAVAPIPE, Options(), tmp_path)
    for lines in texts(tmp_path).values():
        assert lines[1:] == [
            'input "x = 1": 2x3:f32',
            '"a\\nb": tanh:x=2x3,dtype=f32; x="x = 1" -> y=y',
            "output y: 2x3:f32",
        ]


def test_what_was_written_stays_where_a_later_pass_fails(tmp_path):
    with pytest.raises(UsageError, match="no 'node:nobody' here"):
        dump_passes(NETWORKS["image"], LAVAPIPE, Options(dtypes={"node:nobody": "f16"}), tmp_path)
    assert list(texts(tmp_path))[-1] == "32-fuse_reduce.txt"
