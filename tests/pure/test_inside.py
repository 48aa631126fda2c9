"""Values inside others: what a plan does not copy, where the values lie then, and what has to be copied."""

import pytest
from graph_kit import f32, made_up_device, make_graph

from vkconv.core import DType
from vkconv.plan.commands import Launch
from vkconv.plan.planner import Options, plan

W = {"w8": f32(8, 3, 1, 1), "w4": f32(4, 8, 1, 1), "const": f32(1, 4, 4, 8)}
X = {"x": (1, 3, 4, 8)}  # a channel is 128 bytes
CONVS = [("conv2d", "x w8", "a"), ("conv2d", "a w4", "b"), ("conv2d", "x w8", "c")]


def planned(nodes, outputs, inputs=X, alignment=64, **options):
    device = made_up_device("lavapipe", minStorageBufferOffsetAlignment=alignment)
    return plan(make_graph(inputs, nodes, outputs, W), device, Options(**options)).plan


def copies(made):
    """Dispatches by node of what only moves values."""
    return {n.name: n.dispatches for n in made.nodes if n.call.op in ("concat", "slice", "split")}


def place(made, value):
    region = made.values[value][1]
    return region.buffer, region.offset


def inside(made, value, home, offset):
    return place(made, value) == (place(made, home)[0], place(made, home)[1] + offset)


def test_parts_of_a_concat_are_written_where_it_lies():
    made = planned([*CONVS, ("concat", "a b c", "y", {"axis": 1})], "y")
    assert copies(made) == {"concat_y": 0}
    assert inside(made, "a", "y", 0) and inside(made, "b", "y", 8 * 128) and inside(made, "c", "y", 12 * 128)
    (node,) = (n for n in made.nodes if n.call.op == "concat")
    assert node.remark == "copies 0 of 3 parts" and node.route == "strided_copy"
    assert [c.node for c in made.run if isinstance(c, Launch)] == ["conv2d_a", "conv2d_b", "conv2d_c"]


def test_concats_nest_and_their_parts_are_read_in_between():
    nodes = [*CONVS, ("concat", "a b", "ab", {"axis": 1}), ("tanh", "ab", "t"), ("concat", "ab c t", "y", {"axis": 1})]
    made = planned(nodes, "y")
    assert copies(made) == {"concat_ab": 0, "concat_y": 0}
    assert inside(made, "ab", "y", 0) and inside(made, "b", "y", 8 * 128) and inside(made, "t", "y", 20 * 128)


def test_a_reshaped_part_lies_there_too():
    nodes = [*CONVS[:2], ("reshape", "b", "r", {"shape": (4, 32)}), ("reshape", "a", "s", {"shape": (8, 32)})]
    made = planned([*nodes, ("concat", "r s", "y", {"axis": 0})], "y")
    assert copies(made) == {"concat_y": 0} and inside(made, "b", "y", 0) and inside(made, "a", "y", 4 * 128)


COPIED = {
    "an input of the graph": ([("concat", "x a", "y", {"axis": 1})], 1),
    "a constant": ([("concat", "a const", "y", {"axis": 1})], 1),
    "the same twice": ([("concat", "a a", "y", {"axis": 1})], 1),
    "rows of several channels": ([("concat", "a c", "y", {"axis": 2})], 2),
    "a part that lies in another concat": (
        [
            ("concat", "a c", "z", {"axis": 1}),
            ("tanh", "z", "v"),
            ("concat", "c b", "u", {"axis": 1}),
            ("concat", "u v", "y", {"axis": 1}),
        ],
        1,
    ),
    "a slice of every second channel": (
        [("slice", "a", "y", {"starts": (0,), "ends": (8,), "axes": (1,), "steps": (2,)})],
        1,
    ),
    "a slice of rows of several channels": ([("slice", "a", "y", {"starts": (0,), "ends": (2,), "axes": (2,)})], 1),
    "a slice backwards": ([("slice", "a", "y", {"starts": (7,), "ends": (0,), "axes": (1,), "steps": (-1,)})], 1),
    "a slice of an input": ([("slice", "x", "y", {"starts": (0,), "ends": (2,), "axes": (1,)})], 1),
    "a split of rows": ([("split", "a", "y z", {"axis": 2, "sizes": (2, 2)}), ("tanh", "z", "t")], 2),
}


@pytest.mark.parametrize("case", COPIED.values(), ids=COPIED)
def test_what_cannot_lie_there_is_copied(case):
    nodes, count = case
    assert sum(copies(planned([*CONVS, *nodes], "y")).values()) == count


def test_parts_that_begin_where_the_device_binds_nothing_are_copied():
    nodes = [*CONVS, ("concat", "a b c", "y", {"axis": 1})]
    assert copies(planned(nodes, "y", alignment=256)) == {"concat_y": 0}
    assert copies(planned(nodes, "y", alignment=1024)) == {"concat_y": 1}  # c begins at 1536


def test_halves_lie_inside_too():
    nodes = [*CONVS, ("concat", "a b c", "y", {"axis": 1}), ("tanh", "y", "t")]
    made = planned(nodes, "t", dtype=DType.F16)
    assert copies(made) == {"concat_y": 0} and inside(made, "b.f16", "y.f16", 8 * 64)
    assert copies(planned(nodes, "t", {"x": (1, 3, 3, 5)}, 16, dtype=DType.F16)) == {"concat_y": 1}  # c begins at 360


def test_several_images_have_their_channels_apart():
    made = planned([*CONVS, ("concat", "a b", "y", {"axis": 1})], "y", {"x": (2, 3, 4, 8)})
    assert copies(made) == {"concat_y": 2}
    made = planned([*CONVS, ("concat", "a c", "y", {"axis": 0})], "y", {"x": (2, 3, 4, 8)})
    assert copies(made) == {"concat_y": 0}


def test_slices_and_splits_in_a_row_are_read_where_they_lie():
    cut = [
        ("slice", "a", "s", {"starts": (2,), "ends": (4,), "axes": (1,)}),
        ("split", "c", "p q", {"axis": 1, "sizes": (6, 2)}),
        ("concat", "s q", "y", {"axis": 1}),
        ("tanh", "p", "t"),
    ]
    made = planned([*CONVS, *cut], "y t")
    assert copies(made) == {"slice_s": 0, "split_p": 0, "concat_y": 2}
    assert inside(made, "s", "a", 2 * 128) and inside(made, "q", "c", 6 * 128)


def test_nothing_lies_inside_without_passes():
    assert copies(planned([*CONVS, ("concat", "a b c", "y", {"axis": 1})], "y", passes=False)) == {"concat_y": 3}


def test_memory_is_not_lost_for_it():
    """A skip connection over what takes most memory: there the place of the concat would lie unused."""
    large = [("conv2d", "x w8", "a"), ("pad", "a", "p", {"pads": (0, 0, 0, 0, 0, 0, 60, 0)}), ("tanh", "p", "q")]
    back = [("exp", "q", "r"), ("slice", "r", "s", {"starts": (0,), "ends": (4,), "axes": (2,)})]
    nodes = [*large, *back, ("concat", "a s s s s s s s s", "y", {"axis": 1})]
    made = planned(nodes, "y")
    assert copies(made)["concat_y"] == 9
    assert made.memory.lower_bound_bytes == planned(nodes, "y", passes=False).memory.lower_bound_bytes
