"""A profile as a Chrome trace (JSON object form of the Trace Event Format), for Perfetto and chrome://tracing."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from vkconv.ops import OPS
from vkconv.plan.arriving import Arrived
from vkconv.plan.commands import Command, Copy, Launch
from vkconv.plan.model import Plan
from vkconv.plan.profile import Profile
from vkconv.plan.timing import Span, Timing
from vkconv.version import VERSION

_PID = 1
_HOST, _QUEUE = 1, 2
_TRACKS = {_HOST: "host", _QUEUE: "GPU queue"}


def trace(profile: Profile, spans: Iterable[Span] = ()) -> dict[str, Any]:
    """The trace of all runs of a profile, and of ``spans``: what the host did besides, as `Session.spans`.

    One process with two tracks, the host and the GPU's queue, and one time base: microseconds since the first
    event, on the host's clock. How GPU timestamps are put on it is said in ``otherData.clock``, with how far off
    they may be in each run. Every event is a complete one (``ph`` X), inside or beside the others of its track.
    """
    host, queue = list(spans), list[Span]()
    clock = []
    for number, timing in enumerate(profile.timings, 1):
        offset_ns, slack_us = _place(timing)
        host += _host_spans(timing, number)
        queue += _queue_spans(profile.plan, timing, offset_ns, number)
        clock.append({"run": number, "slack_us": slack_us})
    origin_ns = min(span.start_ns for span in host)
    device = profile.plan.device
    name = f"{profile.plan.graph} on {device.name}"
    return {
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": _PID, "tid": _HOST, "ts": 0, "args": {"name": name}},
            *(
                {"name": key, "ph": "M", "pid": _PID, "tid": tid, "ts": 0, "args": {value: text}}
                for tid, track in _TRACKS.items()
                for key, value, text in (("thread_name", "name", track), ("thread_sort_index", "sort_index", tid))
            ),
            *_events(host, _HOST, origin_ns),
            *_events(queue, _QUEUE, origin_ns),
        ],
        "displayTimeUnit": "ns",
        "otherData": {
            "schema": "vkconv.trace/1",
            "vkconv": VERSION,
            "graph": profile.plan.graph,
            "device": device.name,
            "driver": device.driver,
            "vulkan": device.api_version,
            "median_run": profile.median_index + 1,
            "clock": {
                "base": "the host's monotonic clock, from the first event on",
                "gpu": "the first GPU timestamp of a run is put at the start of its vkQueueSubmit, the earliest that "
                "the work can begin; in truth all GPU events of that run may lie later by up to slack_us, after "
                "which the last one would end after the wait returned. A negative slack is a disagreement of the "
                "two clocks: the last timestamp is then put where the wait returned.",
                "gpu_events": "each lasts from the end of the command before it to its own end, so that they sum to "
                "the GPU time; commands that overlap on the device share that time in this way",
                "gpu_tick_ns": device.timestamp_period_ns,
                "runs": clock,
            },
        },
    }


def _place(timing: Timing) -> tuple[int, float]:
    """Where on the host's clock (ns) GPU time 0 of a run lies at the earliest, and how much later it may lie (us)."""
    slack_us = (timing.waited_ns - timing.written_ns) / 1e3 - timing.gpu_total_us
    return timing.written_ns + min(0, round(slack_us * 1e3)), slack_us


def _host_spans(timing: Timing, number: int) -> Iterator[Span]:
    yield Span("profiled run", timing.called_ns or timing.start_ns, timing.end_ns, {"run": number})
    if timing.called_ns:
        yield Span("check inputs", timing.called_ns, timing.start_ns)
    if timing.recorded_ns > timing.start_ns:
        yield Span("record with timestamps", timing.start_ns, timing.recorded_ns)
    yield Span("write inputs", timing.recorded_ns, timing.written_ns)
    yield Span("submit", timing.written_ns, timing.submitted_ns)
    yield Span("wait", timing.submitted_ns, timing.waited_ns)
    yield Span("read outputs", timing.waited_ns, timing.end_ns)


def _queue_spans(plan: Plan, timing: Timing, offset_ns: int, number: int) -> Iterator[Span]:
    """A span per node, copy and wait for images; where a node takes several dispatches, these are spans inside it."""
    ends_ns = [offset_ns + round(us * 1e3) for us in timing.stamps_us]
    nodes = {node.name: node for node in plan.nodes}
    numbered = enumerate(timing.commands)
    for (_, name), group in groupby(numbered, lambda item: (isinstance(item[1], Launch), item[1].node)):
        members = list(group)
        first, last = members[0][0], members[-1][0]
        args: dict[str, Any] = {"run": number}
        if isinstance(members[0][1], Arrived):
            args |= {"op": "wait"}
        elif isinstance(members[0][1], Copy):
            args |= {"op": "copy", "bytes": members[0][1].source.nbytes}
        else:
            node = nodes[name]
            op = OPS[node.call.op]
            args |= {"op": op.name, "route": node.route, "call": node.text}
            args |= {"flops": op.flops(node.call), "bytes": op.compulsory_bytes(node.call)}
            args |= _launch_args(members[0][1]) if len(members) == 1 else {"dispatches": len(members)}
        yield Span(name, ends_ns[first], ends_ns[last + 1], args)
        if len(members) > 1:
            for i, command in members:
                shader = command.shader.key if isinstance(command, Launch) else command.node
                yield Span(shader, ends_ns[i], ends_ns[i + 1], {"run": number, **_launch_args(command)})


def _launch_args(command: Command | Arrived) -> dict[str, Any]:
    if not isinstance(command, Launch):
        return {}
    return {"shader": command.shader.key, "groups": command.groups, "local": command.spec_words[:3]}


def _events(spans: Iterable[Span], tid: int, origin_ns: int) -> Iterator[dict[str, Any]]:
    """Complete events in order of time, those outside before those inside them."""
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        yield {
            "name": span.name,
            "cat": _TRACKS[tid],
            "ph": "X",
            "pid": _PID,
            "tid": tid,
            "ts": (span.start_ns - origin_ns) / 1e3,
            "dur": (span.end_ns - span.start_ns) / 1e3,
            "args": dict(span.args),
        }
