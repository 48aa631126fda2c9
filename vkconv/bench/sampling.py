"""Sampling: how often and for how long a recorded call runs, when a device is at its clock, what samples say."""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from vkconv.backend.executable import Executable
from vkconv.backend.given import checked_count
from vkconv.backend.recorded import Repeats
from vkconv.bench.rows import Row
from vkconv.core import UsageError
from vkconv.device import Device
from vkconv.policy import Policy

# GPU time that one submission should take, so that submitting costs little beside it, and its most dispatches.
BATCH_US = 5000.0
_BATCH_DISPATCHES = 512
# And from one timestamp to the next: one takes the H200 1.2 us, in which nothing else runs.
_STAMPED_US = 100.0
# A warm-up without a number ends when the medians of this many batches in a row agree within this ratio, and it took as
# long as the device's clock takes to come up.
_STABLE_BATCHES = 3
_STABLE_RATIO = 1.02
# Slow calls stop at this many runs, once they took this many times the least time.
FEW_RUNS, PATIENCE = 3, 4.0
# Submissions of one execution, where more than one fits, for the wall time of such.
ALONE_RUNS = 9
_THROTTLING_RATIO = 1.05
_NOISY_PERCENT = 5.0
_FEW_TICKS = 20


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """How to measure: at least ``min_time_s`` of GPU time and ``runs`` executions (`FEW_RUNS` where those take
    longer than `PATIENCE` times the least time), after ``warmup`` executions (None: until stable). ``fixed_push`` is
    that of the planner's options. Raises UsageError for a value that is none."""

    min_time_s: float = 0.2
    runs: int = 10
    warmup: int | None = None
    cooldown_s: float = 0.0
    seed: int = 0
    fixed_push: bool | None = None

    def __post_init__(self) -> None:
        for name in ("min_time_s", "cooldown_s"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float | np.integer | np.floating) or not 0 <= seconds < math.inf:
                raise UsageError(f"{name} is {seconds!r}; it is a number of seconds, 0 or more")
        checked_count("runs", self.runs, "it is a number of executions, at least 1")
        if self.warmup is not None:
            checked_count("warmup", self.warmup, "it is a number of executions, 0 or more, or None", 0)
        checked_count("seed", self.seed, "it is a whole number, 0 or more", 0)


class ClockUp(msgspec.Struct, frozen=True):
    """A row of the policy: seconds of work after which the device is at its clock, and seconds without work in which
    it stays there."""

    after_s: float
    stays_s: float


_CLOCK_UP = Policy("bench.clock_up", ClockUp)


class Clock:
    """How long a device must work until its clock is up, by when it last did."""

    def __init__(self, device: Device) -> None:
        self._policy = _CLOCK_UP.of(device)
        self._worked_until_s = -math.inf

    @property
    def wanted_s(self) -> float:
        """Seconds of work from now on until the clock is up."""
        waited_s = time.monotonic() - self._worked_until_s
        return 0.0 if waited_s < self._policy.stays_s else self._policy.after_s

    def worked(self) -> None:
        """Note that the device worked until now."""
        self._worked_until_s = time.monotonic()


@dataclasses.dataclass(frozen=True)
class Samples:
    """Times of executions in the order they were taken, with what the host took beside them."""

    gpu_us: list[float]
    together: int  # executions that a sample is of
    submissions: int
    wall_us: float
    wall_repeated_us: float
    overhead_us: float


def sample(executable: Executable, dispatches: int, options: BenchOptions, clock_up_s: float) -> Samples:
    """Run it for as long as the options ask, once the device is at its clock."""
    single = executable.repeat(1)
    (first_us,), _ = single.run()
    (second_us,), _ = single.run()  # the first one also pays for what a driver does late
    guess_us = max(min(first_us, second_us), 1.0)
    most = max(1, _BATCH_DISPATCHES // max(dispatches, 1))
    size = min(most, max(1, round(BATCH_US / guess_us)))
    together = min(size, max(1, round(_STAMPED_US / guess_us)))
    size -= size % together
    batch = executable.repeat(size, together) if size > 1 else single
    _warm_up(batch, size, options, clock_up_s)

    least_us, gpu_us, walls_us = options.min_time_s * 1e6, [], []
    turns_us, submitted_us = [], 0.0
    while True:
        started = time.perf_counter_ns()
        spans, wall_us = batch.run()
        gpu_us += spans
        walls_us.append(wall_us / size)
        submitted_us += wall_us
        turns_us.append((time.perf_counter_ns() - started) / 1e3 - wall_us)
        enough = len(gpu_us) >= options.runs and submitted_us >= least_us
        if enough or (len(gpu_us) >= FEW_RUNS and submitted_us >= PATIENCE * least_us):
            break
    alone_us = walls_us if size == 1 else [single.run()[1] for _ in range(ALONE_RUNS)]
    overhead_us = statistics.median(turns_us) / size
    return Samples(
        gpu_us, together, len(walls_us), statistics.median(alone_us), statistics.median(walls_us), overhead_us
    )


def _warm_up(batch: Repeats, size: int, options: BenchOptions, clock_up_s: float) -> None:
    if options.warmup is not None:
        for _ in range(math.ceil(options.warmup / size)):
            batch.run()
        return
    medians: list[float] = []
    begun = time.perf_counter()
    while (passed_s := time.perf_counter() - begun) < options.min_time_s + clock_up_s:
        medians.append(statistics.median(batch.run()[0]))
        last = medians[-_STABLE_BATCHES:]
        if passed_s >= clock_up_s and len(last) == _STABLE_BATCHES and max(last) <= _STABLE_RATIO * min(last):
            return


def summarise(row: Row, samples: Samples, tick_ns: float) -> None:
    """Give a row the numbers of its samples."""
    values = np.array(samples.gpu_us)
    # A clock that did not advance says: less than a tick.
    median = max(float(np.median(values)), tick_ns / 1e3 / samples.together)
    row.us_median, row.us_min, row.us_p90 = median, float(values.min()), float(np.percentile(values, 90))
    row.us_samples = [round(float(value), 3) for value in values]
    row.us_spread_percent = 100 * float(np.median(np.abs(values - median))) / median
    row.runs, row.submissions = len(values) * samples.together, samples.submissions
    row.us_wall, row.us_wall_repeated = samples.wall_us, samples.wall_repeated_us
    row.us_overhead = max(0.0, samples.overhead_us)
    row.notes += notes(values * float(samples.together), tick_ns)


def notes(gpu_us: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]], tick_ns: float) -> list[str]:
    """What to know of samples, in the order they were taken: that the last third took longer than the first (as a
    device does that grows hot) or less time (as one does whose clock had gone down while it waited), that they are
    noisy, that the clock is coarse."""
    values = np.asarray(gpu_us, np.float64)
    median = float(np.median(values))
    third = len(values) // 3
    said = []
    if third >= FEW_RUNS:
        first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
        if last > _THROTTLING_RATIO * first:
            said.append(f"slowed down by {100 * (last / first - 1):.0f} %")
        if first > _THROTTLING_RATIO * last:
            said.append(f"sped up by {100 * (first / last - 1):.0f} %: measure for longer")
    spread = 100 * float(np.median(np.abs(values - median))) / median if median else 0.0
    if spread > _NOISY_PERCENT:
        said.append(f"noisy: spread {spread:.0f} %")
    if median * 1e3 < _FEW_TICKS * tick_ns:
        said.append(f"short: the clock ticks every {tick_ns:g} ns")
    return said
