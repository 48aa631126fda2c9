"""What a session does inside: profiles, intermediate values, threads, time-outs, and the net under the barriers."""

import dataclasses
import threading

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, expected, normals

import vkconv
from vkconv.backend import runtime
from vkconv.backend.executable import Executable
from vkconv.backend.runtime import open_device
from vkconv.core import DeviceError, InputError
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.plan.commands import Barrier
from vkconv.plan.planner import Options, plan
from vkconv.plan.steps import OVERLAP_MEMORY

pytestmark = pytest.mark.gpu
X = normals(1, 3, 9, 11)


def test_pipelines_that_are_forgotten_stay_with_what_was_recorded(device, monkeypatch):
    """A process that compiles thousands keeps the last ones; the commands of open sessions keep theirs."""
    monkeypatch.setattr(runtime, "MOST_PIPELINES", 1)
    live = open_device(device)
    live._pipelines.clear()
    with vkconv.load(conv_graph(), device) as first, vkconv.load(conv_graph(), device) as second:
        assert_right(first.run({"x": X}), X)
        assert_right(second.run({"x": X}), X)
        assert len(live._pipelines) == 1
        assert_right(first.run({"x": X}), X)


# ---- profiles and values


def test_a_profile_has_a_row_for_everything_the_run_did(device):
    with vkconv.load(conv_graph(), device, options=Options(staging=True)) as session:
        session.run({"x": X})
        outputs, timing = session.measure({"x": X})
        table = session.profile({"x": X})
    assert_right(outputs, X)
    host_us = (timing.record_us, timing.write_us, timing.submit_us, timing.wait_us, timing.read_us)
    assert all(us >= 0 for us in (*host_us, *timing.gpu_us.values()))
    assert [row["node"] for row in table.rows] == [
        *("check inputs", "write inputs", "submit", "upload x", "conv", "pool", "download y", "download h"),
        *("wait", "read outputs"),
    ]


def test_intermediate_values_can_be_read(device):
    options = Options(share_memory=False, passes=False)
    with vkconv.load(conv_graph(), device, options=options) as session:
        session.run({"x": normals(1, 3, 9, 11, seed=8)})
        outputs = session.run({"x": X})
        np.testing.assert_array_equal(session.value("x"), X)
        np.testing.assert_array_equal(session.value("h"), outputs["h"])
        c = session.value("c").astype(np.float64)
        np.testing.assert_allclose(c * np.clip(c / 6 + 0.5, 0, 1), expected(X)["h"], atol=1e-4)
        with pytest.raises(InputError, match=r"'hh' cannot be read \(did you mean 'h'\?\)"):
            session.value("hh")


def test_values_that_share_memory_cannot_be_read(device):
    with vkconv.load(conv_graph(), device) as session:
        session.run({"x": X})
        with pytest.raises(InputError, match="share_memory=False"):
            session.value("c")


def test_passes_change_nothing_but_rounding(device):
    with vkconv.load(conv_graph(), device, options=Options(passes=False)) as session:
        assert len(session.plan.nodes) == 3
        assert_right(session.run({"x": X}), X)


# ---- several at once


def test_two_sessions_run_in_turns(device):
    with vkconv.load(conv_graph(), device) as one, vkconv.load(conv_graph(8), device) as two:
        x = normals(1, 3, 9, 8)
        for _ in range(3):
            assert_right(one.run({"x": X}), X)
            assert_right(two.run({"x": x}), x)


def test_closing_one_session_leaves_the_other(device):
    two = vkconv.load(conv_graph(), device)
    with vkconv.load(conv_graph(8), device) as one:
        one.run({"x": normals(1, 3, 9, 8)})
    with two:
        assert_right(two.run({"x": X}), X)


def in_threads(count, work):
    """Run work(i) in threads that start together; the first exception of any of them comes out here."""
    errors, start = [], threading.Barrier(count)

    def guarded(i):
        try:
            start.wait()
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_four_threads_share_a_session(device):
    with vkconv.load(conv_graph("w"), device) as session:

        def work(i):
            for turn in range(4):
                x = normals(1, 3, 9, 6 + (i + turn) % 3, seed=i)
                assert_right(session.run({"x": x}), x)
                rows = session.profile({"x": x}).rows
                assert {row["node"] for row in rows} >= {"conv", "pool"}

        in_threads(4, work)


def test_four_threads_with_a_session_each(device):
    def work(i):
        with vkconv.load(conv_graph(6 + i), device) as session:
            x = normals(1, 3, 9, 6 + i, seed=i)
            for _ in range(3):
                assert_right(session.run({"x": x}), x)

    in_threads(4, work)


# ---- time-outs


def test_a_timeout_is_an_error_and_the_next_run_is_right(device):
    nodes = tuple(Node(f"m{i}", "matmul", (f"v{i}", "w"), (f"v{i + 1}",)) for i in range(12))
    graph = Graph({"v0": TensorSpec((256, 256))}, ("v12",), nodes, {"w": normals(256, 256, seed=3) / 16}, "slow")
    x, other = normals(256, 256), normals(256, 256, seed=1)
    with vkconv.load(graph, device) as session:
        want = session.run({"v0": x})["v12"]
        for _ in range(3):
            with pytest.raises(DeviceError, match="slow on "):
                session.run({"v0": other}, timeout_s=1e-6)
            np.testing.assert_array_equal(session.run({"v0": x})["v12"], want)
        with pytest.raises(DeviceError):
            session.run({"v0": other}, timeout_s=1e-6)


# ---- the net under the barriers


def chain_plan(device, staging, outputs):
    """Three softmax in a row over shared memory: each reads what the one before wrote."""
    nodes = (
        Node("s0", "softmax", ("x",), ("a",), {"axis": 1}),
        Node("s1", "softmax", ("a",), ("b",), {"axis": 1}),
        Node("s2", "softmax", ("b",), ("c",), {"axis": 1}),
    )
    graph = Graph({"x": TensorSpec((8, 16))}, outputs, nodes)
    return plan(graph, open_device(device).device, Options(staging=staging)).plan


REPORTS = {"RAW": "READ-AFTER-WRITE", "WAR": "WRITE-AFTER-READ", "WAW": "WRITE-AFTER-WRITE"}


def run_plan(result, device):
    executable = Executable(result, open_device(device), {}, poison=True)
    outputs = executable.run({"x": normals(8, 16)})
    executable.close()
    return outputs["c"]


@pytest.mark.parametrize(("staging", "outputs", "count"), [(True, ("c",), 4), (False, ("a", "b", "c"), 2)])
def test_every_missing_barrier_is_reported(device, validation, staging, outputs, count):
    """Also where kernels read what others write into memory that the host reads. But for WAW between two dispatches:
    the layer suppresses it, since they may write different elements of the buffer (two parts of a concat do). Only
    tests/pure/test_barriers.py watches over those."""
    result = chain_plan(device, staging, outputs)
    if not staging and not result.transfers.outputs:
        pytest.skip("host and device share no memory that the host reads fast")
    run_plan(result, device)
    if not validation.active:
        pytest.skip("runs without the validation layer")
    assert validation.take() == ""
    barriers = [i for i, command in enumerate(result.run) if isinstance(command, Barrier)]
    assert len(barriers) == count
    for i in barriers:
        planted = dataclasses.replace(result, run=result.run[:i] + result.run[i + 1 :])
        run_plan(planted, device)
        assert f"SYNC-HAZARD-{REPORTS[result.run[i].hazard]}" in validation.take()


# ---- launches side by side

BESIDE = [
    Node("a", "softmax", ("x",), ("a",), {"axis": 1}),
    Node("b", "softmax", ("a",), ("b",), {"axis": 1}),
    Node("c", "softmax", ("x",), ("c",), {"axis": 0}),
    Node("d", "softmax", ("c",), ("d",), {"axis": 1}),
    Node("e", "tanh", ("x",), ("e",)),
    Node("f", "softmax", ("e",), ("f",), {"axis": 1}),
    Node("bd", "add", ("b", "d"), ("bd",)),
    Node("y", "add", ("bd", "f"), ("y",)),
]


def beside(device, monkeypatch, most):
    monkeypatch.setattr(OVERLAP_MEMORY, "of", lambda device: most)
    graph = Graph({"x": TensorSpec((8, 16))}, ("y",), tuple(BESIDE))
    return plan(graph, open_device(device).device, Options(staging=True, passes=False)).plan


def test_branches_side_by_side_give_the_same_bytes_behind_fewer_barriers(device, validation, monkeypatch):
    """And every barrier that is left is needed: the layer reports each that is left out."""
    in_turn, together = (beside(device, monkeypatch, most) for most in (0.0, 4.0))
    barriers = [i for i, command in enumerate(together.run) if isinstance(command, Barrier)]
    assert len(barriers) == 5 < sum(isinstance(command, Barrier) for command in in_turn.run)
    x, found = normals(8, 16), []
    for made in (in_turn, together):
        executable = Executable(made, open_device(device), {}, poison=True)
        found += [executable.run({"x": x})["y"].tobytes() for _ in range(2)]
        executable.close()
    assert len(set(found)) == 1
    if not validation.active:
        pytest.skip("runs without the validation layer")
    assert validation.take() == ""
    for i in barriers:
        planted = dataclasses.replace(together, run=together.run[:i] + together.run[i + 1 :])
        executable = Executable(planted, open_device(device), {}, poison=True)
        executable.run({"x": x})
        executable.close()
        assert "SYNC-HAZARD-" in validation.take()
