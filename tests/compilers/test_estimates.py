"""Lower bounds by the compilers of GPUs that are not here."""

import math
from collections.abc import Sequence

import pytest

from vkconv.compilers.counts import count
from vkconv.compilers.estimate import estimate_all
from vkconv.compilers.gpus import driver_of, find_gpu
from vkconv.compilers.installed import Installed
from vkconv.compilers.live import planning_device
from vkconv.compilers.mix import Kind
from vkconv.compilers.pipelines import Asked, collect, pipeline_of
from vkconv.compilers.rows import code_of
from vkconv.compilers.runner import compile_all
from vkconv.device import Device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.route import judge

GPUS = ("adreno-740", "navi31", "ga102", "apple-m1")
CALLS = ("conv2d:x=1x32x28x28,w=48x32x3x3,p=1", "matmul:a=100x96,b=96x200")
MAX_SECONDS = 60


def asked_of(gpu: str, calls: Sequence[str]) -> tuple[list[Asked], Device]:
    device, _ = planning_device(find_gpu(gpu), "")
    wanted = [
        Asked(call, text, route=route.name)
        for text in calls
        for call in [parse_call(text, OPS)]
        for route in OPS[call.op].routes
        if judge(route, call, device).allowed
    ]
    return wanted, device


@pytest.mark.parametrize("gpu", GPUS)
def test_every_route_has_a_bound_and_no_less_than_its_arithmetic(amd64: Installed, gpu: str) -> None:
    wanted, device = asked_of(gpu, CALLS[:1])
    rows = estimate_all(find_gpu(gpu), wanted, device, max_seconds=MAX_SECONDS)
    assert len(rows) == len(wanted) > 4
    bounded = [row for row in rows if row.us is not None]
    assert all(row.us is not None for row in rows if row.chosen), [row.why for row in rows]
    assert len(bounded) >= len(rows) - 2, [row.why for row in rows if row.us is None]
    for row in bounded:
        for launch in row.launches:
            pipes = set(launch.pipes_us) - {"multiply-adds", "matrices", "bandwidth"}
            assert pipes and launch.us is not None and launch.us > 0, (row.route, launch.shader)


def test_loops_that_are_left_are_those_that_the_compiler_tells(amd64: Installed) -> None:
    """NIR unrolls loops of a constant count: so do the counts that weigh its code."""
    wanted, device = asked_of("adreno-740", CALLS)
    gpu = find_gpu("adreno-740")
    made = collect(wanted, device, fixed_push=False)
    launches = {pipeline_of(launch): launch for one in made for launch in one.launches}
    compiled = compile_all(gpu, launches, max_seconds=MAX_SECONDS)
    same, every = 0, 0
    for pipeline, launch in launches.items():
        code = code_of(compiled[pipeline].executables, driver_of(gpu))
        counts = count(launch, pipeline, 64)
        assert code.loops is not None and code.alu is not None
        every += 1
        same += counts.loops_left == code.loops
        # A multiplication of floats is an instruction at least, however they are weighed.
        told = code.alu * counts.weight(Kind.COMPILED, int(code.loops))
        assert told > 0.7 * counts.dynamic.get(Kind.MULTIPLY, 0.0), pipeline.shader.key
    assert every > 8 and same >= math.floor(0.75 * every), (same, every)
