"""Times of routes by given parameters, for the fits: not checked, at the device's full clock."""

import concurrent.futures
import datetime
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

import vkconv
from vkconv.backend.runtime import open_device
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.single import call_graph, forcing, held_constant
from vkconv.route import Params

# A call, a route and its parameters.
Job = tuple[str, str, Params]
_GROUP = 14
_WARM_S = 0.7


def _prepared(job: Job, device: str) -> vkconv.Session | None:
    text, route, params = job
    call = parse_call(text, OPS)
    zeros = {operand: np.zeros(spec.shape, spec.dtype.numpy) for operand, spec in call.specs.items()}
    weights = held_constant(zeros) if call.op != "matmul" else {}
    try:
        return vkconv.load(call_graph(call, weights), device, options=forcing(route, params))
    except vkconv.VkconvError:
        return None


def header(device: str) -> dict[str, str]:
    """What a file of times says of itself: device, driver and date."""
    live = open_device(device).device
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"device": live.name, "driver": live.driver, "date": date}


def times(jobs: Sequence[Job], device: str) -> Iterator[tuple[Job, float]]:
    """Each job that the device can run, with the median of its times in us."""
    with concurrent.futures.ThreadPoolExecutor(_GROUP) as pool:
        for at in range(0, len(jobs), _GROUP):
            group = jobs[at : at + _GROUP]
            sessions = list(pool.map(lambda job: _prepared(job, device), group))  # first: loading would be timed too
            warm = time.monotonic() + _WARM_S
            for job, session in zip(group, sessions, strict=True):
                if session is None:
                    continue
                with session:
                    repeats = next(iter(session._executables.values())).repeat(4)
                    while time.monotonic() < warm:
                        repeats.run()
                    spans = [us for _ in range(8) for us in repeats.run()[0]]
                    yield job, statistics.median(spans)
