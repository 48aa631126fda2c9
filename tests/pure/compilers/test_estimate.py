"""Lower bounds from canned statistics: what weighs them, what limits, what is left without a bound."""

import dataclasses
import math

import pytest

from vkconv.compilers.counts import count
from vkconv.compilers.estimate import LEFT_OUT, Estimate, Result, estimate, numbers_used, pipes_of, traffic_bytes
from vkconv.compilers.estimated import rows_table, summary
from vkconv.compilers.gpus import Gpu, data, find_gpu
from vkconv.compilers.mix import Kind
from vkconv.compilers.pipelines import Asked, Made, collect, pipeline_of
from vkconv.compilers.rows import Code, GpuHeader
from vkconv.compilers.runner import Compiled, Executable
from vkconv.device import Device, load_device
from vkconv.device.target import target_of
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call

CALL = "conv2d:x=1x16x13x13,w=24x16x3x3,p=1"
ADRENO = {"Instruction Count": 400, "cat2 instructions": 100, "cat3 instructions": 100, "cat6 instructions": 40}
ADRENO["cat5 instructions"] = 0


def made_of(text: str, route: str | None, device: Device) -> Made:
    (made,) = collect([Asked(parse_call(text, OPS), text, route=route)], device, fixed_push=False)
    return made


def with_target(device: Device, **numbers: float) -> Device:
    """The device with other numbers in its target."""
    facts = dict(device.facts)
    target = dict(facts["target"])
    source = {"evidence": "assumed", "source": "a test"}
    target["numbers"] = {**target["numbers"], **{name: {"value": value, **source} for name, value in numbers.items()}}
    return Device({**facts, "target": target})


def compiled(statistics: dict[str, float], size: int = 64) -> Compiled:
    executable = Executable(name="compute", subgroup_size=size, statistics=statistics)
    return Compiled(outcome="compiled", compile_ms=1.0, executables=(executable,))


def bound(made: Made, device: Device, gpu: Gpu, each: Compiled) -> Estimate:
    return estimate(gpu, made, {pipeline_of(launch): each for launch in made.launches}, device)


@pytest.fixture(scope="module")
def adreno() -> Device:
    return load_device("adreno-740")


@pytest.fixture(scope="module")
def direct(adreno: Device) -> Made:
    return made_of(CALL, "direct", adreno)


def test_a_bound_is_that_of_the_busiest_pipe_of_the_busiest_core_and_a_launch(adreno: Device, direct: Made) -> None:
    row = bound(direct, adreno, find_gpu("adreno-740"), compiled(ADRENO))
    (launch,) = row.launches
    (command,), target = direct.launches, target_of(adreno)
    counts = count(command, pipeline_of(command), 64)
    invocations = math.ceil(math.prod(launch.groups) / 6) * math.prod(launch.local)
    per_us = target.value("clock_mhz") / invocations
    alu = 200 * counts.weight(Kind.COMPILED) / 256
    memory = 40 * counts.weight(Kind.MEMORY) / 16
    assert launch.pipes_us["ALU"] == pytest.approx(alu / per_us)
    assert launch.pipes_us["memory"] == pytest.approx(memory / per_us)
    assert launch.pipes_us["multiply-adds"] == pytest.approx(counts.dynamic[Kind.MULTIPLY] / 256 / per_us)
    assert launch.us == max(launch.pipes_us.values()) and launch.pipes_us[launch.limit] == launch.us
    assert row.us == pytest.approx(launch.us + target.value("launch_us"))
    assert row.limits_us == {launch.limit: launch.us, "launches": target.value("launch_us")} or row.limit == "launches"
    assert row.limit == next(iter(row.limits_us)) and not row.failed and row.why == ""


def test_loops_weigh_what_is_in_them(adreno: Device, direct: Made) -> None:
    """Twice the input channels are twice the turns of the loop, though the code is the same."""
    gpu, each = find_gpu("adreno-740"), compiled(ADRENO)
    once = bound(direct, adreno, gpu, each).launches[0].pipes_us
    wider = made_of("conv2d:x=1x32x13x13,w=24x32x3x3,p=1", "direct", adreno)
    assert pipeline_of(wider.launches[0]).digest == pipeline_of(direct.launches[0]).digest
    twice = bound(wider, adreno, gpu, each).launches[0].pipes_us
    assert twice["multiply-adds"] == pytest.approx(2 * once["multiply-adds"], rel=0.02)
    assert 1.8 * once["memory"] < twice["memory"] < 2.05 * once["memory"]


def test_a_loop_that_the_compiler_kept_is_weighed_by_its_count(adreno: Device) -> None:
    """That a compiler tells more loops means that one of a constant count is rolled, so that its body stands once."""
    made = made_of("matmul:a=64x64,b=64x64", "register", adreno)
    gpu = find_gpu("adreno-740")
    unrolled = bound(made, adreno, gpu, compiled({**ADRENO, "Loops": 1})).launches[0]
    rolled = bound(made, adreno, gpu, compiled({**ADRENO, "Loops": 2})).launches[0]
    assert rolled.pipes_us["ALU"] > unrolled.pipes_us["ALU"]
    assert rolled.pipes_us["multiply-adds"] == unrolled.pipes_us["multiply-adds"]


@pytest.mark.parametrize(
    ("numbers", "limit"),
    [
        ({"launch_us": 1e4}, "launches"),
        ({"bandwidth_gbs": 0.01, "cache_bytes": 1, "launch_us": 0.01}, "bandwidth"),
        ({"fma_per_unit": 1, "launch_us": 0.01}, "memory"),
    ],
)
def test_the_limit_is_named(adreno: Device, numbers: dict[str, float], limit: str) -> None:
    device = with_target(adreno, **numbers)
    row = bound(made_of(CALL, "direct", device), device, find_gpu("adreno-740"), compiled(ADRENO))
    assert row.limit == limit and row.us is not None and row.limits_us[limit] > row.us / 2


def test_more_cores_and_a_higher_clock_lower_a_bound(adreno: Device) -> None:
    gpu, each = find_gpu("adreno-740"), compiled(ADRENO)
    made = made_of("conv2d:x=1x16x56x56,w=24x16x3x3,p=1", "direct", adreno)
    times = [
        bound(made, with_target(adreno, **numbers), gpu, each).launches[0].us
        for numbers in ({}, {"clock_mhz": 1360}, {"compute_units": 12})
    ]
    assert times[0] == pytest.approx(2 * times[1]) and times[2] == pytest.approx(times[0] / 2, rel=0.1)


def test_memory_moves_each_byte_once_but_for_what_the_cache_holds(adreno: Device, direct: Made) -> None:
    (launch,) = direct.launches
    all_bytes = sum({(region.buffer, region.offset): region.nbytes for region, _ in launch.binds}.values())
    counts = count(launch, pipeline_of(launch), 64)
    small, large = (target_of(with_target(adreno, cache_bytes=n)) for n in (100, all_bytes))
    assert traffic_bytes(launch, counts, 1_000_000, small) == all_bytes - 100
    assert traffic_bytes(launch, counts, 1_000_000, large) == 0
    idle = dataclasses.replace(counts, each_run=(0.0,) * len(counts.each_run))
    assert traffic_bytes(launch, idle, 1_000_000, small) == 0  # what asks for nothing moves nothing


def test_a_kernel_that_does_not_compile_leaves_its_route_without_a_bound(adreno: Device) -> None:
    made = made_of(CALL, None, adreno)
    row = bound(made, adreno, find_gpu("adreno-740"), Compiled(outcome="timeout", seconds=3))
    assert row.chosen and row.failed and row.us is None
    assert "the compiler was not done after 3 s" in row.why
    table = rows_table([row])
    assert row.why in str(table.cells[0]) and row.launches[0].verdict == "too long"


def test_a_route_that_cannot_be_planned_says_why(adreno: Device) -> None:
    made = made_of("conv2d:x=1x16x13x13,w=24x16x7x7", "winograd", adreno)
    row = estimate(find_gpu("adreno-740"), made, {}, adreno)
    assert row.us is None and not row.failed and "winograd" in row.why


def test_spills_are_noted(adreno: Device, direct: Made) -> None:
    row = bound(direct, adreno, find_gpu("adreno-740"), compiled({**ADRENO, "STP Count": 3, "LDP Count": 1}))
    assert row.spills and row.us is not None


def test_malis_floats_and_integers_are_weighed_by_themselves() -> None:
    device, gpu = load_device("mali-g715"), find_gpu("mali-g610")
    statistics = {"FMA": 1.0, "CVT": 0.5, "SFU": 2.0, "Load/store": 4.0, "ALU": 2.0, "Instructions": 300}
    launch = bound(made_of(CALL, "direct", device), device, gpu, compiled(statistics, 16)).launches[0]
    pipes, weights = launch.pipes_us, launch.weights
    assert set(pipes) == {"multiply-adds", "FMA", "CVT", "SFU", "issue", "load/store", "bandwidth"}
    # Twice the multiply-adds of the core that the compiler counts for.
    assert pipes["FMA"] / pipes["SFU"] == pytest.approx(
        weights["arithmetic of floats"] / weights["integers as compiled"] / 2
    )
    assert pipes["issue"] == pytest.approx(pipes["FMA"] + pipes["CVT"] + pipes["SFU"] / 4)
    # Bifrost tells no pipes of arithmetic.
    told = {"Arithmetic": 2.0, "Load/store": 4.0}
    older = bound(made_of(CALL, "direct", device), device, gpu, compiled(told, 16)).launches[0]
    assert set(older.pipes_us) == {"multiply-adds", "arithmetic", "load/store", "bandwidth"}


def test_every_driver_has_pipes_of_columns_that_its_statistics_fill() -> None:
    columns = set(Code.__struct_fields__)
    for name, driver in data().drivers.items():
        pipes = pipes_of(name)
        assert pipes, name
        for pipe in pipes:
            assert {term.column for term in pipe.terms} <= columns & set(driver.columns), (name, pipe.name)
            assert pipe.per_cycle > 0 and pipe.over > 0 and pipe.source
            assert pipe.evidence != "measured"  # nobody had the GPUs


def test_what_is_left_out_and_what_was_used_is_told(adreno: Device) -> None:
    numbers = numbers_used(adreno)
    assert numbers["clock_mhz"]["value"] == 680 and all(one["source"] for one in numbers.values())
    assert any("latency" in text for text in LEFT_OUT)


def test_sixteen_bit_arithmetic_goes_at_its_rate(adreno: Device) -> None:
    device, gpu = with_target(adreno, launch_us=0.01), find_gpu("adreno-740")
    made = made_of("conv2d:x=1x16x13x13,w=24x16x3x3,p=1,dtype=f16", "direct_tile_f16", device)
    if made.why:
        pytest.skip(made.why)
    half = bound(made, device, gpu, compiled(ADRENO)).launches[0].pipes_us
    slow = bound(made, with_target(device, f16_rate=1), gpu, compiled(ADRENO)).launches[0].pipes_us
    assert slow["ALU"] > 1.1 * half["ALU"] and slow["memory"] == half["memory"]


def test_the_summary_adds_first_choices_as_often_as_they_count() -> None:
    rows = [
        Estimate(gpu="g", call="a", count=3, chosen=True, us=2.0),
        Estimate(gpu="g", call="a", us=1.0),
        Estimate(gpu="g", call="b", chosen=True, why="no"),
    ]

    header = GpuHeader(name="g", title="", driver="", version="", planned_with="", occupancy="")
    result = Result(calls="a, b", options={}, gpu=header, target={}, pipes=[], rows=rows)
    assert summary(result) == "g: first choices of 2 calls take at least 6 us together; 1 of them have NO bound"
