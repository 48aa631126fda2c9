"""Profiles of real runs: the sums, the unchanged results, and the files that the command line makes of them."""

import contextlib
import io
import json
import time

import numpy as np
import pytest
from traces import check_run, check_trace, runs

from vkconv.cli import main
from vkconv.core import UsageError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import save_vkc
from vkconv.loading import load

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def network():
    """A convolution whose filter is an input, so that it packs in every run, then relu and softmax."""
    specs = {"x": TensorSpec((1, 8, 23, 19)), "w": TensorSpec((16, 8, 3, 3))}
    nodes = (
        Node("conv", "conv2d", ("x", "w"), ("c",), {"padding": (1, 1, 1, 1)}),
        Node("clamp", "relu", ("c",), ("r",)),
        Node("soft", "softmax", ("r",), ("y",)),
    )
    return Graph(specs, ("y", "c"), nodes, name="three")  # c is looked at: the relu does not fuse


def arrays():
    random = np.random.default_rng(3)
    return {name: random.standard_normal(spec.dims, np.float32) for name, spec in network().inputs.items()}


def test_profiling_changes_no_result(device):
    with load(network(), device) as session:
        x = arrays()
        plain = session.run(x)
        profiled, timing = session.measure(x)
        again = session.run(x)
    for name in plain:
        assert np.abs(plain[name]).max() > 0
        assert plain[name].tobytes() == profiled[name].tobytes() == again[name].tobytes()
    assert timing.gpu_us.keys() >= {"conv", "clamp", "soft"}


def clocked(function, *arguments):
    """What a call gives, and the microseconds that a clock of the test's own says it took."""
    started = time.perf_counter()
    result = function(*arguments)
    return result, (time.perf_counter() - started) * 1e6


def test_rows_sum_to_what_a_clock_around_the_run_says(device):
    with load(network(), device) as session:
        first = session.profile(arrays())
        later = session.profile(arrays(), runs=4)
        with pytest.raises(UsageError, match="at least 1"):
            session.profile(arrays(), runs=0)
        x, unseen_us = arrays(), []
        for _ in range(5):
            profile, clock_us = clocked(session.profile, x)
            for table in (profile.nodes, profile.ops):
                rows_us = sum(row["time"] for row in table.rows)
                assert rows_us <= clock_us and profile.timing.call_us <= clock_us
            unseen_us.append(clock_us - rows_us)
    # What no row shows: checking the inputs, reading timestamps, making the profile.
    assert min(unseen_us) < 5000
    began = [[row["node"] for row in profile.rows][:3] for profile in (first, later)]
    assert began[0] == ["check inputs", "record", "write inputs"]  # only the first run records
    assert began[1][:2] == ["check inputs", "write inputs"]
    for profile in (first, later):
        assert all(row["time"] >= 0 for row in profile.rows)
        assert all(timing.wall_us <= timing.call_us for timing in profile.timings)
        conv = next(row for row in profile.rows if row["op"] == "conv2d")
        assert conv["GFLOP/s"] > 0 and conv["GB/s"] > 0
    walls = sorted(timing.wall_us for timing in later.timings)
    assert later.timing.wall_us == walls[1]


def products(count, side):
    """``count`` matrix products, each of the one before, after one with a single column and one of a single term."""
    big = np.eye(side, dtype=np.float32)
    constants = {"big": big, "narrow": big[:, :1].copy(), "wide": big[:1].copy()}
    right = ["narrow", "wide", *["big"] * count]
    nodes = tuple(Node(f"m{i}", "matmul", (f"v{i}", name), (f"v{i + 1}",)) for i, name in enumerate(right))
    return Graph({"v0": TensorSpec((side, side))}, (f"v{len(right)}",), nodes, constants, "products")


def long_side(device):
    """So that a product takes much longer than to start it does."""
    for side in (192, 384, 768, 1536, 3072):
        with load(products(1, side), device) as session:
            x = {"v0": np.ones((side, side), np.float32)}
            if min(session.measure(x)[1].gpu_us["m2"] for _ in range(3)) > 100:
                break
    return side


def test_gpu_time_is_what_a_clock_says_that_more_work_takes(device):
    """Three times the products: the timestamps and the clock must agree on what they add."""
    side = long_side(device)
    x = {"v0": np.random.default_rng(4).standard_normal((side, side), np.float32)}
    gpu_us, clock_us = [], []
    for count in (20, 60):
        with load(products(count, side), device) as session:
            session.measure(x)
            runs = [clocked(session.measure, x) for _ in range(7)]
        timings = [timing for (_, timing), _ in runs]
        gpu_us.append(min(timing.gpu_total_us for timing in timings))
        clock_us.append(min(us for _, us in runs))
        assert all(timing.gpu_total_us <= us for timing, (_, us) in zip(timings, runs, strict=True))
        # And they are the right node's: of the elements of m1, each is the sum of one product, not of many.
        node_us = {name: min(timing.gpu_us[name] for timing in timings) for name in timings[0].gpu_us}
        assert node_us["m1"] < 0.5 * np.median([node_us[f"m{i}"] for i in range(2, count + 2)])
    assert gpu_us[1] - gpu_us[0] == pytest.approx(clock_us[1] - clock_us[0], rel=0.3)


def test_trace_and_node_data_of_a_run(tmp_path, device):
    model, trace, data = tmp_path / "three.vkc", tmp_path / "t.json", tmp_path / "n.json"
    save_vkc(network(), model)
    out = io.StringIO()
    command = ["run", str(model), "--device", device, "--runs", "3", "--warmup", "1"]
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as done:
        main([*command, "--trace", str(trace), "--node-data", str(data)])
    assert not done.value.code
    assert f"wrote {trace}" in out.getvalue() and "submit" not in out.getvalue()  # a profile only where it is asked for

    tracks = check_trace(json.loads(trace.read_text()))
    host = [event["name"] for event in tracks["host"]]
    for step in ("load model", "open device", "plan", "allocate", "load weights", "record", "first run"):
        assert host.count(step) == 1, step
    assert (host.count("warm-up run"), host.count("run"), host.count("profiled run")) == (1, 3, 3)
    for run, steps, queue in runs(tracks):
        check_run(run, steps, queue)
        steps_of_all = {"check inputs", "write inputs", "submit", "wait", "read outputs"}
        assert set(steps) - {"record with timestamps"} == steps_of_all
        names = [event["name"] for event in queue]
        assert {"conv", "soft"} <= set(names)
        for event in (e for e in queue if e["args"]["op"] != "copy"):
            assert {"route", "call", "flops", "bytes"} <= set(event["args"])

    (graph,) = json.loads(data.read_text()).values()
    assert "conv" in graph["results"] and all(result["value"] > 0 for result in graph["results"].values())


def test_files_of_a_run_must_differ(tmp_path, device, capsys):
    model, same = tmp_path / "three.vkc", tmp_path / "same.json"
    save_vkc(network(), model)
    with pytest.raises(SystemExit) as done:
        main(["run", str(model), "--device", device, "--trace", str(same), "--node-data", str(same)])
    assert done.value.code == 2 and "its own" in capsys.readouterr().err
    assert not same.exists()
