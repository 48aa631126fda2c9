"""Costs that were timed on a GPU: what the policy says on that one, on others what their numbers make of it."""

import dataclasses

import pytest

from vkconv.core import UsageError, align, ceil_div
from vkconv.cost import Issued, Scale, Turns, issue_rate
from vkconv.device import Device, load_device, shipped_devices, target_of
from vkconv.ops import OPS
from vkconv.ops.conv.conv2d.implicit_gemm import _COSTS as GEMM_COSTS
from vkconv.ops.conv.conv2d.winograd import _compared
from vkconv.ops.core.calls import parse_call
from vkconv.ops.kernels.coopmat import _COSTS as MATRIX_COSTS
from vkconv.ops.kernels.shared_costs import SHARED_COSTS
from vkconv.ops.kernels.tile_costs import TileCosts, Work
from vkconv.policy import tables
from vkconv.route import choose

H200, RTX_3090 = load_device("h200"), load_device("geforce-rtx-3090-nvk")
# As times of the H200, whichever device they are of.
TIMED = {
    one.name: dataclasses.replace(one.of(H200), timed_on="h200") for one in (GEMM_COSTS, SHARED_COSTS, MATRIX_COSTS)
}
# One, two and eleven workgroups for the busiest of 132 units.
WORKS = [Work(blocks, k_tiles, 10**6, products=65536, nbytes=10**9) for blocks in (3, 140, 1400) for k_tiles in (4, 99)]


def with_numbers(device: Device, **numbers: float) -> Device:
    """The device with other numbers in its target."""
    target = dict(device.facts["target"])
    said = {"evidence": "assumed", "source": "a test of what the number changes"}
    target["numbers"] = {**target["numbers"], **{name: {"value": value, **said} for name, value in numbers.items()}}
    return Device({**device.facts, "target": target})


def us(costs: TileCosts, device: Device, work: Work, slices: int = 1, tile: str = "64x64x16_8x4") -> float:
    return costs.us(tile, work, slices, target_of(device))


def split_k(text: str, device: Device) -> int:
    route = next(route for route in OPS["conv2d"].routes if route.name == "implicit_gemm")
    return int(route.resolve(parse_call(text, OPS), device, {})["split_k"])


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("form", ["", "vec4", "linear", "shifted"])
@pytest.mark.parametrize("slices", [1, 4])
def test_on_the_device_that_was_timed_costs_are_the_policys_own_numbers(name: str, form: str, slices: int) -> None:
    costs, target = TIMED[name], target_of(H200)
    for tile, (first, first_k, further, further_k, *together) in costs.costs.items():
        for work in WORKS:
            k_tiles = ceil_div(work.k_tiles, slices) * costs.forms.get(form, 1.0)
            busiest = ceil_div(slices * work.workgroups, 132)
            more = align(busiest, int(*together or (1,))) - 1 if busiest > 1 else 0
            taken = first + k_tiles * first_k + more * (further + k_tiles * further_k)
            taken = max(taken, first + k_tiles * costs.wait_us)
            mib = 4 * (slices + 1) * work.outputs / 2**20
            added = costs.sum_us + costs.sum_mib_us * mib if slices > 1 else 0.0
            assert costs.us(tile, dataclasses.replace(work, form=form), slices, target) == taken + added


def test_every_cost_of_tiles_and_transforms_says_a_shipped_device() -> None:
    values = [row.value for table in tables().values() for row in table.rows if isinstance(row.value, dict)]
    timed = [value for value in values if "sum_us" in value or "launches_us" in value]
    assert len(timed) == 9 and {value.get("timed_on") for value in timed} <= set(shipped_devices())


@pytest.mark.parametrize(("name", "said"), [("h2000", "'h2000'.*did you mean 'h200'"), ("", "''")])
def test_times_of_a_device_without_a_file_are_refused(name: str, said: str) -> None:
    costs = dataclasses.replace(TIMED["conv2d.gemm_costs"], timed_on=name)
    with pytest.raises(UsageError, match=f"times of a policy are of the device {said}"):
        us(costs, H200, WORKS[0])


def test_each_launch_costs_what_it_costs_on_the_target() -> None:
    costs, slow = TIMED["conv2d.gemm_costs"], with_numbers(H200, launch_us=100)
    for work in WORKS:
        assert us(costs, slow, work) - us(costs, H200, work) == pytest.approx(97.8)
        assert us(costs, slow, work, 4) - us(costs, H200, work, 4) == pytest.approx(2 * 97.8)


def test_what_is_beyond_launches_goes_by_the_clock() -> None:
    costs, slow = TIMED["conv2d.gemm_costs"], with_numbers(H200, clock_mhz=198)
    for work in WORKS:
        assert us(costs, slow, work) - 2.2 == pytest.approx(10 * (us(costs, H200, work) - 2.2))


def test_products_alone_go_by_the_rate_of_the_units() -> None:
    """140 workgroups: two on the busiest unit."""
    costs, slow, work = TIMED["conv2d.gemm_costs"], with_numbers(H200, fma_per_unit=16), WORKS[3]
    products_us = 2 * 99 * 65536 / 128 / 1980
    assert us(costs, slow, work) - us(costs, H200, work) == pytest.approx(7 * products_us)
    # Of the form that takes 0.75 times as long each k-tile has as many.
    quick = dataclasses.replace(work, form="vec4")
    assert us(costs, slow, quick) - us(costs, H200, quick) == pytest.approx(7 * products_us)


def test_products_of_matrices_go_by_the_rate_of_matrix_units() -> None:
    costs, work, tile = TIMED["cooperative.tiles"], WORKS[3], "64x64x32"
    lanes, slow = with_numbers(H200, fma_per_unit=16), with_numbers(H200, matrix_fma_per_unit=512)
    assert us(costs, lanes, work, tile=tile) == us(costs, H200, work, tile=tile)
    products_us = 2 * 99 * 65536 / 2048 / 1980
    more = us(costs, slow, work, tile=tile) - us(costs, H200, work, tile=tile)
    assert more == pytest.approx(3 * products_us)
    none = with_numbers(H200, matrix_fma_per_unit=0)
    more = us(costs, none, work, tile=tile) - us(costs, H200, work, tile=tile)
    assert more == pytest.approx(7 * products_us)  # two f16 products of each of 128 lanes in a cycle


def test_bytes_go_by_bandwidth() -> None:
    costs, slow = TIMED["conv2d.gemm_costs"], with_numbers(H200, bandwidth_gbs=42)
    mib = 2**20
    more = costs.sum(8 * mib, costs.scale(target_of(slow))) - costs.sum(8 * mib, costs.scale(target_of(H200)))
    assert more == pytest.approx(8 * 0.25 * 99)
    # A product takes no less than what it reads and writes: 10^9 bytes.
    assert us(costs, slow, WORKS[0]) == pytest.approx(1e6 / 42)
    assert us(costs, with_numbers(H200, bandwidth_gbs=8400), WORKS[0]) == us(costs, H200, WORKS[0])


def test_where_memory_bounds_tiles_alike_what_they_compute_decides() -> None:
    slow = with_numbers(RTX_3090, bandwidth_gbs=1)
    call = parse_call("conv2d:x=1x64x28x28,w=64x64x3x3,p=1", OPS)
    route = next(route for route in OPS["conv2d"].routes if route.name == "implicit_gemm")
    params = route.resolve(call, slow, {})
    assert params == {**route.resolve(call, RTX_3090, {}), "split_k": 1}


def test_dear_launches_leave_sums_whole() -> None:
    cheap, dear = (with_numbers(RTX_3090, launch_us=value) for value in (0.5, 100))
    for text in ("conv2d:x=1x64x28x28,w=64x64x3x3,p=1", "conv2d:x=1x512x14x14,w=512x512x3x3,s=2,p=1"):
        assert split_k(text, cheap) > split_k(text, dear) == 1, text


def test_winograd_is_compared_by_the_launches_memory_and_arithmetic_of_the_target() -> None:
    call = parse_call("conv2d:x=1x64x28x28,w=64x64x3x3,p=1", OPS)
    assert _compared(call, H200) == pytest.approx((12.4, 10.2), abs=0.05)
    # Three launches, and one without split-K.
    near, far = (_compared(call, with_numbers(RTX_3090, launch_us=value)) for value in (10, 100))
    assert near and far
    assert [b - a for a, b in zip(near, far, strict=True)] == pytest.approx([270, 90])
    slow = _compared(call, with_numbers(RTX_3090, bandwidth_gbs=20, cache_bytes=65536))
    usual = _compared(call, RTX_3090)
    assert slow and usual and slow[0] > 5 * usual[0] and slow[1] == pytest.approx(call.nbytes / 20e3)
    # Where arithmetic is slow, its fewer products are worth the launches.
    lame = choose(OPS["conv2d"].routes, call, with_numbers(RTX_3090, fma_per_unit=16, clock_mhz=200))
    assert choose(OPS["conv2d"].routes, call, RTX_3090).route.name == "implicit_gemm" and lame.route.name == "winograd"


@pytest.mark.parametrize("name", shipped_devices())
def test_no_device_makes_less_than_nothing_of_a_time(name: str) -> None:
    """The least that was timed is less than a launch of the H200."""
    target = target_of(load_device(name))
    for costs in TIMED.values():
        for tile in costs.costs:
            work = Work(1, 1, 1, products=16 * 16 * 8, nbytes=4)
            assert costs.us(tile, work, 1, target) >= target.numbers["launch_us"].value * 0.9


def test_cached_bytes_go_by_units_and_clock() -> None:
    scale = Scale.of("h200", target_of(RTX_3090))
    assert scale.cached(1.0) == pytest.approx(132 / 82 * 1980 / 1695)
    assert scale.moved(1.0) == pytest.approx(4200 / 936)
    assert scale.launched(6.0, 2) == pytest.approx(2 * 3 + 1.6 * 1980 / 1695)


def test_instructions_take_their_cycles_or_the_least_and_what_nothing_hides() -> None:
    target = target_of(with_numbers(H200, clock_mhz=1000))
    assert Issued(10.0, 25.0, 7.0).us(2, 1, target) == pytest.approx(32e-3)
    assert Issued(10.0, 25.0, 7.0).us(3, 1, target) == pytest.approx(37e-3)
    assert Issued(10.0, 25.0, 7.0, resident=2).us(5, 1, target) == pytest.approx(71e-3)


def test_subgroups_issue_as_many_instructions_as_lanes_multiply() -> None:
    assert issue_rate(H200) == 4 and issue_rate(load_device("mali-g57")) == 2
    slow = with_numbers(H200, fma_per_unit=64)
    call = parse_call("pool2d:x=8x64x112x112,kind=max,k=3,s=2,p=1", OPS)
    (route,) = (route for route in OPS["pool2d"].routes if route.name == "tiles")
    waits = [with_numbers(device, dependent_cycles=1) for device in (H200, slow)]
    us = [route.estimated_us(call, device, route.resolve(call, H200, {})) for device in waits]
    assert us[0] and us[1] and us[1] - 2.2 == pytest.approx(2 * (us[0] - 2.2), rel=0.05)


def test_turns_are_no_shorter_than_the_least_that_keeps_a_unit_busy() -> None:
    assert [Turns(2.0, 3, 1.5).us(n, 1, target_of(H200)) for n in (0, 1, 3, 4)] == [0.0, 3.0, 6.0, 9.0]
    assert Turns(2.0, 2, 4.0).us(5, 1, target_of(H200)) == 2.0 * (4 + 4 + 4)


LAID_OUT = ["x=1x28x28x1x64,layout=NHWGC,w=1x64x3x3x64,w_layout=GKYXC", "x=1x28x28x64,w=64x64x3x3,layout=NHWC"]


@pytest.mark.parametrize("text", [f"conv2d:{shapes},p=1" for shapes in LAID_OUT])
def test_calls_in_any_layout_have_the_estimates_of_what_kernels_see(text: str) -> None:
    call = parse_call(text, OPS)
    choice = choose(OPS["conv2d"].routes, call, H200)
    assert choice.route.name == "implicit_gemm"
    seen = choice.route.seen(call)
    alike = choose(OPS["conv2d"].routes, seen, H200)
    assert choice.route.estimated_us(call, H200, choice.params) == alike.route.estimated_us(seen, H200, alike.params)
