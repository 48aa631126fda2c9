"""What was measured of one run, as plain data: host spans, GPU timestamps and the clock around them."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vkconv.plan.arriving import Arrived
from vkconv.plan.commands import Command


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Something the host did, between two readings of `time.perf_counter_ns`."""

    name: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def us(self) -> float:
        return (self.end_ns - self.start_ns) / 1e3


@contextlib.contextmanager
def spanning(spans: list[Span], name: str, **args: Any) -> Iterator[None]:
    """Append a `Span` of the block to ``spans`` once it is done; a block that raises leaves none."""
    started = time.perf_counter_ns()
    yield
    spans.append(Span(name, started, time.perf_counter_ns(), args))


@dataclasses.dataclass(frozen=True)
class Timing:
    """Where one profiled run's wall time went.

    ``commands`` are the plan's launches and copies in order; ``stamps_us`` has one more entry: GPU time 0 before
    the first command, then when each command and all before it had finished. The others are readings of
    `time.perf_counter_ns`: ``start_ns``; ``recorded_ns`` after recording the commands, which only the first
    profiled run of a plan does (else it is ``start_ns``); ``written_ns`` after the inputs were copied to
    host-visible memory; ``submitted_ns`` after the queue took the work; ``waited_ns`` after the device had
    finished; ``end_ns`` after the outputs were copied; ``called_ns`` before inputs were checked and the plan was
    found (0: nobody looked). ``call_us`` is what a clock around the whole call says, which also reads timestamps (0:
    nobody looked).

    ``check_us + record_us + write_us + submit_us + gpu_total_us + wait_us + read_us`` is ``wall_us``: where the device
    works while the queue is still taking the work, that time is the device's.
    """

    commands: Sequence[Command | Arrived]
    stamps_us: Sequence[float]
    start_ns: int
    recorded_ns: int
    written_ns: int
    submitted_ns: int
    waited_ns: int
    end_ns: int
    call_us: float = 0.0
    called_ns: int = 0

    @property
    def command_us(self) -> list[float]:
        """GPU microseconds of each command; they sum to ``gpu_total_us``."""
        return [after - before for before, after in zip(self.stamps_us, self.stamps_us[1:], strict=False)]

    @property
    def gpu_us(self) -> dict[str, float]:
        """GPU microseconds by node name or copy label, in order of first appearance."""
        sums: dict[str, float] = {}
        for command, us in zip(self.commands, self.command_us, strict=True):
            sums[command.node] = sums.get(command.node, 0.0) + us
        return sums

    @property
    def gpu_total_us(self) -> float:
        return self.stamps_us[-1] - self.stamps_us[0]

    @property
    def check_us(self) -> float:
        """What it took to check inputs and find their plan, buffers and commands."""
        return (self.start_ns - self.called_ns) / 1e3 if self.called_ns else 0.0

    @property
    def record_us(self) -> float:
        return (self.recorded_ns - self.start_ns) / 1e3

    @property
    def write_us(self) -> float:
        return (self.written_ns - self.recorded_ns) / 1e3

    @property
    def submit_us(self) -> float:
        """What the queue's taking the work cost beyond GPU time: its own wall time, less what overlapped."""
        return max(0.0, min((self.submitted_ns - self.written_ns) / 1e3, self._beyond_gpu_us))

    @property
    def wait_us(self) -> float:
        """What waiting took beyond GPU time: starting, waking up. Negative only if the two clocks disagree."""
        return self._beyond_gpu_us - self.submit_us

    @property
    def read_us(self) -> float:
        return (self.end_ns - self.waited_ns) / 1e3

    @property
    def wall_us(self) -> float:
        return (self.end_ns - (self.called_ns or self.start_ns)) / 1e3

    @property
    def _beyond_gpu_us(self) -> float:
        return (self.waited_ns - self.written_ns) / 1e3 - self.gpu_total_us
