"""Profiles, traces and node data from made-up measurements, where every sum is known."""

import itertools
import json

import numpy as np
import pytest
from traces import check_run, check_trace, runs

from vkconv.bench.node_data import node_data
from vkconv.bench.trace import trace
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Barrier, Copy, Launch
from vkconv.plan.planner import Options, plan
from vkconv.plan.profile import Profile
from vkconv.plan.timing import Span, Timing, spanning

MS = 1_000_000
DEVICE = load_device("lavapipe")


@pytest.fixture(scope="module")
def two_steps():
    """A plan of a convolution whose filter is an input (so that it packs in every run, in a dispatch of its own),
    a slice and a relu."""
    graph = Graph(
        {"x": TensorSpec((1, 8, 9, 9)), "w": TensorSpec((16, 8, 1, 1))},
        ("y",),
        (
            Node("conv", "conv2d", ("x", "w"), ("c",)),
            Node("cut", "slice", ("c",), ("s",), {"starts": (0,), "ends": (3,), "axes": (1,), "steps": (1,)}),
            Node("clamp", "relu", ("s",), ("y",)),
        ),
        name="net <1>",
    )
    made = plan(graph, DEVICE, Options(passes=False, routes={"conv2d": "pointwise"}, staging=True)).plan
    assert [node.dispatches + node.prepack_dispatches for node in made.nodes] == [2, 1, 1]
    return made


def timing(made, start_ns, *, record_ns=0, submit_us=30.0, wait_us=None, step_us=10.0, call_us=0.0):
    """A run whose i-th command takes (i + 1) * step_us on the GPU, after writing for 5 us and before reading for 7."""
    commands = tuple(c for c in made.run if not isinstance(c, Barrier))
    stamps = tuple(itertools.accumulate(i * step_us for i in range(len(commands) + 1)))
    recorded = start_ns + record_ns
    written = recorded + 5_000
    submitted = written + int(submit_us * 1e3)
    beyond_us = stamps[-1] + 12.5 - submit_us if wait_us is None else wait_us
    waited = submitted + int(beyond_us * 1e3)
    return Timing(commands, stamps, start_ns, recorded, written, submitted, waited, waited + 7_000, call_us)


def test_parts_of_a_run_sum_to_its_wall_time(two_steps):
    measured = timing(two_steps, 100 * MS, record_ns=2 * MS)
    host = (measured.record_us, measured.write_us, measured.submit_us, measured.wait_us, measured.read_us)
    # Submitting took 30 us, and all of it until the end of the wait 12.5 us longer than the GPU.
    assert host == pytest.approx((2000, 5, 12.5, 0, 7))
    assert sum(host) + measured.gpu_total_us == pytest.approx(measured.wall_us)
    assert sum(measured.gpu_us.values()) == pytest.approx(measured.gpu_total_us) == sum(measured.command_us)


@pytest.mark.parametrize(
    ("submit_us", "wait_us", "rows"),
    [
        (30.0, 90.0, (20.0, 0.0)),  # the device worked while the queue was still taking the work
        (30.0, 150.0, (30.0, 50.0)),
        (60.0, 39.0, (0.0, -1.0)),  # the GPU's clock claims more than there was: it shows, and the sum holds
    ],
)
def test_what_overlaps_the_device_is_the_devices(two_steps, submit_us, wait_us, rows):
    n = sum(not isinstance(c, Barrier) for c in two_steps.run)
    step_us = 100.0 / sum(range(1, n + 1))
    measured = timing(two_steps, 0, submit_us=submit_us, wait_us=wait_us, step_us=step_us)
    assert measured.gpu_total_us == pytest.approx(100)
    assert (measured.submit_us, measured.wait_us) == pytest.approx(rows, abs=1e-3)
    parts = Profile(two_steps, [measured]).parts
    assert sum(part.us for part in parts) == pytest.approx(measured.wall_us)


def test_profile_shows_the_median_run(two_steps):
    timings = [timing(two_steps, i * MS, step_us=us, call_us=us) for i, us in enumerate((30.0, 10.0, 20.0, 40.0))]
    assert Profile(two_steps, timings).timing.call_us == 20.0
    assert Profile(two_steps, timings[:3]).timing.call_us == 20.0
    assert "the median of 4 runs" in Profile(two_steps, timings).nodes.title
    assert "median" not in Profile(two_steps, timings[:1]).nodes.title


def test_node_rows(two_steps):
    profile = Profile(two_steps, [timing(two_steps, 0, record_ns=3 * MS, call_us=4321.0)])
    rows = {row["node"]: row for row in profile.rows}
    assert list(rows) == [
        "record", "write inputs", "submit", "upload x", "upload w", "conv", "cut", "clamp", "download y", "wait",
        "read outputs",
    ]  # fmt: skip
    assert [row["time"] for row in rows.values()][3:9] == pytest.approx([10, 20, 30 + 40, 50, 60, 70])
    wall_us = profile.timing.wall_us
    for row in rows.values():
        assert row["share"] == pytest.approx(100 * row["time"] / wall_us)
    shares = itertools.accumulate(row["share"] for row in rows.values())
    assert [row["cumulative"] for row in rows.values()] == pytest.approx(list(shares))
    assert rows["read outputs"]["cumulative"] == pytest.approx(100)

    flops, nbytes = 2 * 16 * 8 * 81, 4 * (8 * 81 + 16 * 8 + 16 * 81)
    assert (rows["conv"]["op"], rows["conv"]["route"]) == ("conv2d", "pointwise")
    assert rows["conv"]["GFLOP/s"] == pytest.approx(flops / 70e-6 / 1e9)
    assert rows["conv"]["GB/s"] == pytest.approx(nbytes / 70e-6 / 1e9)
    assert rows["cut"]["GFLOP/s"] is None
    assert rows["cut"]["GB/s"] == pytest.approx(2 * 4 * 3 * 81 / 50e-6 / 1e9)  # not all of what it cuts from
    assert rows["upload x"]["GB/s"] == pytest.approx(2 * 4 * 8 * 81 / 10e-6 / 1e9)
    assert rows["wait"]["GB/s"] is None
    assert "4321.0 us" in profile.note and f"{wall_us:.1f} us" in profile.note


def test_op_rows_add_up_the_node_rows(two_steps):
    profile = Profile(two_steps, [timing(two_steps, 0)])
    nodes, ops = profile.nodes.rows, {row["op"]: row for row in profile.ops.rows}
    assert {op: row["count"] for op, row in ops.items()} == {"copy": 3, "conv2d": 1, "slice": 1, "relu": 1, "host": 4}
    for op, row in ops.items():
        assert row["time"] == pytest.approx(sum(node["time"] for node in nodes if node["op"] == op))
    times = [row["time"] for row in profile.ops.rows]
    assert times == sorted(times, reverse=True) and sum(times) == pytest.approx(profile.timing.wall_us)
    conv = next(node for node in nodes if node["op"] == "conv2d")
    assert ops["conv2d"]["GFLOP/s"] == pytest.approx(conv["GFLOP/s"])


def test_a_profile_prints_everywhere(two_steps):
    profile = Profile(two_steps, [timing(two_steps, 0)])
    for text, name in ((str(profile), "net <1>"), (profile.to_markdown(), "net &lt;1&gt;")):
        assert f"{name} on {DEVICE.name}" in text and "pointwise" in text and profile.note in text
    page = profile._repr_html_()
    assert "net &lt;1&gt;" in page and "<1>" not in page
    data = json.loads(json.dumps(profile.data(), allow_nan=False))
    assert data["schema"] == "vkconv.profile/1" and len(data["nodes"]) == 10 and len(data["ops"]) == 5


def test_a_span_that_fails_leaves_nothing():
    spans = []
    with spanning(spans, "good", file="a"):
        pass
    with pytest.raises(ZeroDivisionError), spanning(spans, "bad"):
        _ = 1 / 0
    assert [(span.name, span.args) for span in spans] == [("good", {"file": "a"})]
    assert 0 < spans[0].us < 1e6


def test_trace_puts_everything_on_one_time_base(two_steps):
    spans = [
        Span("record", 12 * MS, 19 * MS),
        Span("load", 10 * MS, 11 * MS, {"file": "m"}),
        Span("compile a", 13 * MS, 15 * MS),
    ]
    timings = [timing(two_steps, 20 * MS, record_ns=MS), timing(two_steps, 30 * MS, submit_us=33.0, wait_us=300.0)]
    profile = Profile(two_steps, timings)
    data = trace(profile, spans)
    tracks = check_trace(json.loads(json.dumps(data, allow_nan=False)))
    assert [e["name"] for e in tracks["host"][:3]] == ["load", "record", "compile a"]
    assert tracks["host"][0]["ts"] == 0 and tracks["host"][2]["ts"] == 3000 and tracks["host"][2]["dur"] == 2000
    assert tracks["host"][0]["args"] == {"file": "m"}
    found = list(runs(tracks))
    assert len(found) == 2
    for (run, steps, queue), measured, slack in zip(found, timings, data["otherData"]["clock"]["runs"], strict=True):
        check_run(run, steps, queue)
        assert run["ts"] == pytest.approx((measured.start_ns - 10 * MS) / 1e3)
        assert queue[0]["ts"] == pytest.approx(steps["submit"]["ts"], abs=1e-3)
        by_node = {event["name"]: event["dur"] for event in queue}
        assert by_node == pytest.approx(measured.gpu_us, abs=0.002)
        end = steps["wait"]["ts"] + steps["wait"]["dur"]
        assert slack["slack_us"] == pytest.approx(end - queue[-1]["ts"] - queue[-1]["dur"], abs=0.002)
    assert "record with timestamps" in found[0][1] and "record with timestamps" not in found[1][1]


def test_trace_events_say_what_was_dispatched(two_steps):
    tracks = check_trace(trace(Profile(two_steps, [timing(two_steps, 0)])))
    queue = {event["name"]: event for event in tracks["GPU queue"]}
    launches = {c.node: c for c in two_steps.run if isinstance(c, Launch)}
    args = queue["clamp"]["args"]
    assert args["shader"] == launches["clamp"].shader.key and tuple(args["groups"]) == launches["clamp"].groups
    assert tuple(args["local"]) == launches["clamp"].spec_words[:3]
    call = parse_call(args["call"], OPS)
    assert (args["op"], args["route"], args["bytes"]) == ("relu", "elementwise", OPS["relu"].compulsory_bytes(call))
    assert queue["conv"]["args"]["dispatches"] == 2 and queue["conv"]["args"]["flops"] == 2 * 16 * 8 * 81
    parts = [e for e in tracks["GPU queue"] if "shader" in e["args"] and "op" not in e["args"]]
    assert len(parts) == 2 and sum(e["dur"] for e in parts) == pytest.approx(queue["conv"]["dur"], abs=0.002)
    copy = next(c for c in two_steps.run if isinstance(c, Copy))
    assert queue[copy.node]["args"]["bytes"] == copy.target.nbytes == 4 * 8 * 81


def test_trace_of_clocks_that_disagree_stays_inside_the_run(two_steps):
    total_us = timing(two_steps, 0).gpu_total_us
    measured = timing(two_steps, 0, submit_us=30.0, wait_us=total_us - 33.0)
    data = trace(Profile(two_steps, [measured]))
    assert data["otherData"]["clock"]["runs"] == [{"run": 1, "slack_us": pytest.approx(-3.0)}]
    ((_, steps, queue),) = runs(check_trace(data))
    end = steps["wait"]["ts"] + steps["wait"]["dur"]
    assert queue[-1]["ts"] + queue[-1]["dur"] == pytest.approx(end, abs=0.002)


def test_node_data_has_the_keys_that_model_explorer_documents(two_steps):
    profile = Profile(two_steps, [timing(two_steps, 0)])
    data = json.loads(json.dumps(node_data(profile), allow_nan=False))
    assert list(data) == ["net <1>"]
    graph = data["net <1>"]
    assert set(graph) <= {"name", "results", "thresholds", "gradient"}
    assert set(graph["results"]) == {node.name for node in two_steps.nodes}
    assert all(set(result) <= {"value", "bgColor", "textColor"} for result in graph["results"].values())
    assert {node: result["value"] for node, result in graph["results"].items()} == pytest.approx(
        {"conv": 70.0, "cut": 50.0, "clamp": 60.0}
    )
    bounds = [threshold["value"] for threshold in graph["thresholds"]]
    assert bounds == sorted(bounds) and bounds[-1] >= max(r["value"] for r in graph["results"].values())
    assert all(set(t) == {"value", "bgColor"} and t["bgColor"].startswith("#") for t in graph["thresholds"])


def test_node_data_of_a_single_node_has_a_colour():
    graph = Graph({"x": TensorSpec((3, 7))}, ("y",), (Node("only", "relu", ("x",), ("y",)),))
    made = plan(graph, DEVICE).plan
    for step_us in np.random.default_rng(2).uniform(0.1, 9, 50):
        data = node_data(Profile(made, [timing(made, 0, step_us=float(step_us))]))["graph"]
        assert data["results"]["only"]["value"] <= data["thresholds"][-1]["value"]
