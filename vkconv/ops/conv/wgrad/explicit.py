"""The gradient by one tap as a matrix product of each image and group, in slices of its pixels where images and tiles
are few, and the sum over all of these.

The product is a launch, not an inner matmul: its results are f32 slices, which no matmul of 16-bit floats writes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

from vkconv.call import Call
from vkconv.core import bytes_str, counted
from vkconv.cost import compute_units
from vkconv.device import Device
from vkconv.ops.conv.wgrad.combine import COMBINING, combine
from vkconv.ops.conv.wgrad.cost import SLICES
from vkconv.ops.conv.wgrad.problem import WeightGradient
from vkconv.ops.core.base import first
from vkconv.ops.core.requirements import loop_iterations, scratch_budget, within_scratch
from vkconv.ops.kernels.compiled import element_of
from vkconv.ops.kernels.coopmat import EIGHT, TILES
from vkconv.ops.kernels.coopmat_gemm import PRODUCT_TO_F32, cooperative_params, cooperative_product
from vkconv.ops.kernels.epilogue import Epilogue
from vkconv.ops.kernels.gemm import VEC4, GemmProblem
from vkconv.ops.kernels.products import TILES as PRODUCT_TILES
from vkconv.ops.kernels.products import params as product_params
from vkconv.ops.kernels.products import product
from vkconv.ops.kernels.products import product_us as products_us
from vkconv.ops.kernels.split_k import able_slices, launches
from vkconv.policy import Policy
from vkconv.program import Dispatch, Program
from vkconv.requirement import Requirement
from vkconv.route import Legal, Params


@dataclasses.dataclass(frozen=True, slots=True)
class Slicing:
    """The fewest ``pixels`` of a slice, and the ``workgroups`` for each compute unit that slices make at most."""

    pixels: int
    workgroups: int


_SLICING = Policy("wgrad.explicit", Slicing)


def _gemm(call: Call) -> GemmProblem:
    """dy (C_out / groups, pixels) by x (pixels, C_in / groups) of each image and group."""
    p = WeightGradient.of(call)
    plane = math.prod(p.out)
    each = ((p.n, p.c_out * plane, p.c_in * plane), (p.groups, p.rows * plane, p.channels * plane))
    batch = tuple(row for row in each if row[0] > 1)
    return GemmProblem(p.rows, p.channels, plane, (plane, 1), (1, plane), (p.channels, 1), batch)


_OPERANDS, _TO_SCRATCH = ("dy", "x"), Epilogue(target="slices")


def build(call: Call, device: Device, params: Params) -> Program:
    """Products in f32."""

    def launch(g: GemmProblem) -> Dispatch:
        return product(params["tile"], g, _OPERANDS, _TO_SCRATCH, device)

    return _summed(call, device, params["split_k"], VEC4, launch)


def build_cooperative(call: Call, device: Device, params: Params) -> Program:
    """Products of 16-bit floats by cooperative matrices."""
    tile = TILES[params["tile"]]

    def launch(g: GemmProblem) -> Dispatch:
        return cooperative_product(g, _OPERANDS, _TO_SCRATCH, tile, device, PRODUCT_TO_F32)

    return _summed(call, device, params["split_k"], EIGHT, launch)


def _summed(call: Call, device: Device, slices: int, width: int, launch: Callable[[GemmProblem], Dispatch]) -> Program:
    """Slices of the pixels of each image, and their sum."""
    parts = launches(_gemm(call), slices, width, device, launch)
    summed = combine(call, WeightGradient.of(call).n * slices, device)
    return Program((*parts, summed), scratch={"slices": _scratch_bytes(call, device) * slices})


def params(call: Call, device: Device) -> Legal:
    """The tile of the product, and the slices of an image's pixels: what should take the least time where tiles were
    timed."""
    g, element = _gemm(call), element_of(call)
    able = _able(call, g, VEC4, device)
    costs = {way: us for way in _timed_ways(g, able, device, element) if (us := _us(call, g, *way, device)) is not None}
    if costs:
        tile, slices = min(costs, key=costs.__getitem__)
        return {"tile": first(tile, product_params(g, device, element)["tile"]), "split_k": first(slices, able)}

    def ways(of_slice: GemmProblem) -> tuple[tuple[str, ...], int]:
        tiles = product_params(of_slice, device, element)["tile"]
        return tiles, of_slice.blocks(*PRODUCT_TILES[tiles[0]].block)

    return _filling(call, g, VEC4, device, ways)


def _able(call: Call, g: GemmProblem, width: int, device: Device) -> tuple[int, ...]:
    """Slices of an image that the scratch holds."""
    most = scratch_budget(device) // max(_scratch_bytes(call, device), 1)
    return tuple(s for s in able_slices(g, width, SLICES) if s == 1 or s <= most)


def _timed_ways(g: GemmProblem, able: tuple[int, ...], device: Device, element: str) -> Iterator[tuple[str, int]]:
    """For each number of slices that are one launch the tile that the product takes for them."""
    for slices in able:
        if slices * g.slice_length(slices, VEC4) == g.k or slices == 1:
            yield product_params(g.in_slices(slices, VEC4)[0], device, element)["tile"][0], slices


def _us(call: Call, g: GemmProblem, tile: str, slices: int, device: Device) -> float | None:
    """Microseconds of the product and of the launch that adds up; None where such were not timed."""
    if g.k % VEC4:  # gathered element by element, which no tile was timed with
        return None
    product_us, combining = products_us(tile, g.in_slices(slices, VEC4)[0], device), COMBINING.of(device)
    if product_us is None or not combining.timed_on:
        return None
    return product_us + combining.of(_scratch_bytes(call, device) * slices + call.outputs["dw"].nbytes, device)


def estimated_us(call: Call, device: Device, params: Params) -> float | None:
    """Microseconds of both launches; None where they were not timed, or images are no whole vectors."""
    return _us(call, _gemm(call), params["tile"], params["split_k"], device)


def params_cooperative(call: Call, device: Device) -> Legal:
    """The tile of the product, and the slices of an image's pixels."""

    def ways(of_slice: GemmProblem) -> tuple[tuple[str, ...], int]:
        tiles = cooperative_params(of_slice, device)["tile"]
        return tiles, of_slice.blocks(TILES[tiles[0]].rows, TILES[tiles[0]].columns)

    return _filling(call, _gemm(call), EIGHT, device, ways)


def _filling(
    call: Call,
    g: GemmProblem,
    width: int,
    device: Device,
    ways: Callable[[GemmProblem], tuple[tuple[str, ...], int]],
) -> Legal:
    """One slice where that has a workgroup for each compute unit, else the most that the policy allows, by the tile
    that is taken then. ``ways`` has the tiles for one slice of all, the rule's pick first, and its workgroups."""
    able = _able(call, g, width, device)
    units, best, slicing = compute_units(device), (ways(g), 1), _SLICING.of(device)
    for slices in able[1:] if best[0][1] < units else ():
        of_slice = g.in_slices(slices, width)[0]
        way = ways(of_slice)
        if of_slice.k >= slicing.pixels and way[1] <= slicing.workgroups * units:
            best = way, slices
    (tiles, _), slices = best
    return {"tile": tiles, "split_k": first(slices, able)}


def _images(call: Call) -> str:
    n = WeightGradient.of(call).n
    return counted(n, "image")


def note(call: Call, device: Device, params: Params) -> str:
    """Images, slices and scratch."""
    slices = params["split_k"]
    of_each = f" of {slices} slices" if slices > 1 else ""
    return f"{_images(call)}{of_each}; {bytes_str(_scratch_bytes(call, device) * slices)} scratch"


def _scratch_bytes(call: Call, device: Device) -> int:
    """Of a slice of each image."""
    p = WeightGradient.of(call)
    return 4 * p.size * p.n


def _iterations(call: Call, device: Device) -> int:
    g = _gemm(call)
    return max(g.k, g.batches)


MUST = (
    Requirement(
        "at least one image to multiply",
        lambda call, device: WeightGradient.of(call).n > 0,
        lambda call, device: _images(call),
    ),
    within_scratch(_scratch_bytes, "a slice of each image"),
    loop_iterations(_iterations),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Least:
    """Channels of a group, in and out, and pixels of an image from which on matrix units are used."""

    channels: int
    pixels: int


_LEAST = Policy("wgrad.explicit_least", Least)


def _fills(g: GemmProblem, least: Least) -> bool:
    return g.least_side >= least.channels and g.k >= least.pixels


def _filled(g: GemmProblem, least: Least) -> str:
    return f"{g.n} in, {g.m} out of {least.channels}, {g.k} pixels of {least.pixels}"


FILLS_MATRICES = Requirement(
    "enough channels of a group, in and out, and pixels of an image for tiles of matrices",
    lambda call, device: _fills(_gemm(call), _LEAST.of(device)),
    lambda call, device: _filled(_gemm(call), _LEAST.of(device)),
)
