"""When attention is taken by lanes that own queries, by which tile, and what refuses it."""

import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.attention_lanes import TILES
from vkconv.ops.fused.attention_problem import AttentionProblem
from vkconv.route import choose, judge

H200, ADRENO = load_device("h200"), load_device("adreno-740")
ROUTE = next(route for route in OPS["attention"].routes if route.name == "flash_lanes")


def square(heads, length, head, more=""):
    shape = f"{heads}x{length}x{head}"
    return parse_call(f"attention:q={shape},k={shape},v={shape}{more}", OPS)


@pytest.mark.parametrize(
    ("call", "tile"),
    [
        (square("2048x3", 49, 32, ",mask=64x3x49x49"), "64x16_4x4"),
        (square("128x12", 49, 32), "64x16_4x4"),
        (square("4x12", 49, 32), "16x32_1x4"),
        (square("2048x3", 49, 8), "64x32_2x2"),  # two vec4 of a head: no more lanes
        (square("2048x3", 49, 4), "64x32_1x1"),
        (square("512x12", 197, 128), "32x16_2x4"),  # what is held of queries and results
    ],
)
def test_the_tile_is_that_of_heads_and_workgroups(call, tile):
    choice = choose(OPS["attention"].routes, call, H200)
    assert (choice.route.name, choice.params["tile"]) == (ROUTE.name, tile)


@pytest.mark.parametrize(
    ("call", "device", "refused_by"),
    [
        (square("4x12", 49, 1600), H200, "a tile of keys and values that a workgroup can hold"),
        (square("4x12", 49, 320), H200, "queries and results that registers hold, by a tile of the policy"),
        (square("4x12", 7, 32), H200, "as many queries as leave no tile mostly empty"),
        (square("4x12", 49, 32), ADRENO, "a device of the policy"),
    ],
)
def test_what_lanes_do_not_pay_for_goes_another_way(call, device, refused_by):
    assert str(judge(ROUTE, call, device).refused_by) == refused_by
    assert choose(OPS["attention"].routes, call, device).route.name != ROUTE.name


def test_invocations_are_whole_rows_of_a_mask_tile_and_clusters_whole():
    for tile in TILES.values():
        assert tile.local % tile.keys == 0 and tile.lanes % tile.cluster_rows == 0 and tile.keys % 8 == 0
        assert 8 * tile.cluster_rows >= tile.lanes


def test_every_legal_tile_fits_a_workgroup():
    for head in (8, 32, 64, 128):
        call = square("2x3", 197, head, ",mask=197x197")
        p = AttentionProblem.of(call)
        assert all(TILES[name].shared_bytes(p, True) <= 49152 for name in ROUTE.params(call, H200)["tile"])
