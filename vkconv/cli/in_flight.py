"""Runs in flight behind ``vkconv run --in-flight``: how many end in a second, and how long each one takes."""

import dataclasses
import functools
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from vkconv.core import Array
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.session import Session
    from vkconv.staged import StagedSession


@dataclasses.dataclass(frozen=True)
class InFlight:
    """Runs with at most ``most`` on their way at a time: the time that all took, and each from before it was submitted,
    which is when it waits for room, to its results."""

    most: int
    wall_us: float
    latencies_us: Sequence[float]

    @property
    def runs_per_s(self) -> float:
        return len(self.latencies_us) / self.wall_us * 1e6

    def percentile_us(self, percent: float) -> float:
        """The least latency that so many per cent of the runs did not exceed."""
        return float(np.percentile(self.latencies_us, percent, method="inverted_cdf"))

    @property
    def table(self) -> Table:
        rows = [
            ("runs", len(self.latencies_us), ""),
            ("throughput", self.runs_per_s, "runs/s"),
            *((f"latency p{percent}", self.percentile_us(percent) / 1e3, "ms") for percent in (50, 90, 99)),
            ("longest", max(self.latencies_us) / 1e3, "ms"),
        ]
        return Table(f"{self.most} in flight", (Column("what"), Column("figure"), Column("unit")), rows)

    def data(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "in_flight": self.most,
            "wall_us": self.wall_us,
            "runs_per_s": self.runs_per_s,
            **{f"latency_p{percent}_us": self.percentile_us(percent) for percent in (50, 90, 99)},
            "latencies_us": list(self.latencies_us),
        }


def measure_in_flight(
    session: "Session | StagedSession",
    arrays: Mapping[str, Array],
    runs: int,
    warmup: int,
    most: int,
    timeout_s: float | None,
) -> InFlight:
    """Submit ``runs`` runs after ``warmup`` others; results go as they land. DeviceError where one fails, or takes
    longer than ``timeout_s`` for itself and for each of those that it may wait for."""
    all_s = None if timeout_s is None else timeout_s * (most + 1)
    for _ in range(warmup):
        session.submit(arrays, timeout_s=timeout_s).result()
    starts: list[float] = []
    ends: dict[int, float] = {}
    failures: list[BaseException] = []
    ended = threading.Semaphore(0)

    def landed(future: "Future[dict[str, Array]]", number: int) -> None:
        ends[number] = time.perf_counter()
        failures.extend(filter(None, [future.exception()]))
        ended.release()

    began = time.perf_counter()
    for number in range(runs):
        if failures:
            break
        starts.append(time.perf_counter())
        session.submit(arrays, timeout_s=all_s).add_done_callback(functools.partial(landed, number=number))
    for _ in starts:
        ended.acquire()
    if failures:
        raise failures[0]
    latencies = [1e6 * (ends[number] - start) for number, start in enumerate(starts)]
    return InFlight(most, 1e6 * (max(ends.values()) - began), latencies)
