"""When attention is taken by cooperative matrices in one launch, by which tile, and what refuses it."""

import pytest

from vkconv.device import load_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.ops.fused.attention_cooperative import COOPERATIVE, TILES
from vkconv.ops.fused.attention_problem import AttentionProblem
from vkconv.route import choose, judge

H200, LAVAPIPE = load_device("h200"), load_device("lavapipe")


def square(length, head, dtype="f16", heads=48, more=""):
    shape = f"{heads}x12x{length}x{head}"
    return parse_call(f"attention:q={shape},k={shape},v={shape}{more},dtype={dtype}", OPS)


def taken(call):
    return choose(OPS["attention"].routes, call, H200)


@pytest.mark.parametrize(
    ("length", "head", "dtype", "tile"),
    [
        (49, 32, "f16", "64x32_16"),
        (197, 64, "bf16", "64x32_16"),
        (197, 36, "f16", "64x32_16"),
        (197, 128, "f16", "64x32_16"),  # what it takes of shared memory
        (32, 16, "f16", "32x32_16"),
    ],
)
def test_windows_and_images_are_taken_by_matrices(length, head, dtype, tile):
    call = square(length, head, dtype)
    assert judge(COOPERATIVE, call, H200).allowed and COOPERATIVE.resolve(call, H200, {})["tile"] == tile
    assert taken(call).route.name == COOPERATIVE.name


@pytest.mark.parametrize(
    ("call", "refused_by"),
    [
        (square(49, 32, "f32"), "elements of one 16-bit float type"),
        (square(31, 32), "a device of the policy, and as many queries, keys and elements as fill matrices"),
        (square(49, 8), "a device of the policy, and as many queries, keys and elements as fill matrices"),
        (
            square(49, 264),
            "heads of at most 256 elements, and a workgroup that holds a tile of whole matrices for them",
        ),
    ],
)
def test_what_matrices_do_not_pay_for_goes_another_way(call, refused_by):
    assert str(judge(COOPERATIVE, call, H200).refused_by) == refused_by
    assert taken(call).route.name != COOPERATIVE.name


def test_a_device_without_matrices_says_so():
    verdict = judge(COOPERATIVE, square(49, 32), LAVAPIPE)
    assert not verdict.allowed and "VK_KHR_cooperative_matrix" in verdict.actual


def test_every_legal_tile_fits_a_workgroup():
    for head in (8, 32, 64, 128, 200, 256):
        call = square(197, head)
        p = AttentionProblem.of(call)
        legal = COOPERATIVE.params(call, H200)["tile"]
        assert legal and all(TILES[name].shared_bytes(p, H200, by) <= 49152 for name in legal for by in (False, True))
