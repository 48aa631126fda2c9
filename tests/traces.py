"""What every Chrome trace of vkconv must be; the tests of pure data and of real runs both ask it."""

import itertools

import pytest

TRACKS = {1: "host", 2: "GPU queue"}
# Times are whole nanoseconds, printed in microseconds.
TOLERANCE_US = 1e-3


def check_trace(data):
    """Assert keys, types, order and nesting of a trace; returns its complete events by track name."""
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    assert data["otherData"]["schema"] == "vkconv.trace/1"
    assert {"base", "gpu", "gpu_tick_ns", "runs"} <= set(data["otherData"]["clock"])
    named, tracks = {}, {name: [] for name in TRACKS.values()}
    for event in data["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts", "args"} <= set(event)
        assert event["pid"] == 1 and isinstance(event["name"], str) and event["name"]
        if event["ph"] == "M":
            named[event["name"], event["tid"]] = event["args"].get("name")
            continue
        assert event["ph"] == "X" and set(event) == {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0 and event["dur"] >= 0
        tracks[TRACKS[event["tid"]]].append(event)
    assert {tid: named["thread_name", tid] for tid in TRACKS} == TRACKS
    assert named["process_name", 1]
    for events in tracks.values():
        _check_nesting(events)
    return tracks


def _check_nesting(events):
    """In order of start, and each event inside the one that was still open, or after it."""
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(events))
    open_ends = []
    for event in events:
        start, end = event["ts"], event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= start + TOLERANCE_US:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + TOLERANCE_US, f"{event['name']} leaves what it lies in"
        if event["dur"]:
            open_ends.append(end)


def runs(tracks):
    """The profiled runs of a trace: (host steps by name, events of the GPU's track not inside others) of each."""
    host = tracks["host"]
    for run in (event for event in host if event["name"] == "profiled run"):
        end = run["ts"] + run["dur"]
        inside = [e for e in host if e is not run and run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= end + 1e-3]
        queue = [e for e in tracks["GPU queue"] if e["args"]["run"] == run["args"]["run"]]
        yield run, {e["name"]: e for e in inside}, [e for e in queue if "op" in e["args"]]


def check_run(run, steps, queue):
    """The host's steps fill the run, the GPU works between submitting and the end of the wait."""
    assert sum(step["dur"] for step in steps.values()) == pytest.approx(run["dur"], abs=0.01)
    assert queue[0]["ts"] >= steps["submit"]["ts"] - TOLERANCE_US
    assert queue[-1]["ts"] + queue[-1]["dur"] <= steps["wait"]["ts"] + steps["wait"]["dur"] + TOLERANCE_US
    for before, after in itertools.pairwise(queue):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.002)
