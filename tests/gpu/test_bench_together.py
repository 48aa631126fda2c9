"""Rows that are compiled and checked together before they are timed, as on discrete GPUs, and pipelines that several
threads compile."""

import threading
from types import SimpleNamespace

import pytest
from session_kit import assert_right, conv_graph, normals

import vkconv
from vkconv.backend import runtime
from vkconv.backend.executable import Executable
from vkconv.backend.runtime import open_device
from vkconv.bench import engine
from vkconv.bench.engine import Trial, measure_all
from vkconv.bench.runner import Routes, make_tasks, run_tasks
from vkconv.bench.sampling import BenchOptions, Clock, ClockUp
from vkconv.bench.suites import parse_entries
from vkconv.core import DeviceError
from vkconv.ops import OPS
from vkconv.ops.core.calls import parse_call
from vkconv.plan.commands import Launch

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
QUICK = BenchOptions(min_time_s=0.002, runs=3, warmup=1)
TEXTS = ("relu:x=99", "flatten:x=3x4", "tanh:x=3x7", "relu:x=99", "softmax:x=5x9", "conv2d:x=1x3x9x9,w=4x3x3x3")
CALLS = [parse_call(text, OPS) for text in TEXTS]


@pytest.fixture
def live(device, monkeypatch):
    """The device without a pipeline, which compiles in four threads."""
    live = open_device(device)
    live._pipelines.clear()
    monkeypatch.setattr(live, "compile_threads", 4)
    monkeypatch.setattr(live, "_compiling", threading.Semaphore(4))
    return live


@pytest.fixture
def together(live, device, monkeypatch):
    """The rows of the calls, in groups of so many."""

    def rows(most, calls=CALLS):
        monkeypatch.setattr(engine, "_AHEAD", SimpleNamespace(of=lambda facts: engine._Ahead(most, 2)))
        return measure_all(map(Trial, calls), device=device, options=QUICK)

    return rows


@pytest.fixture
def steps(monkeypatch):
    """The steps of all rows, as they are done."""
    done = []

    def noting(name, step):
        def noted(self, *args):
            done.append(name)
            return step(self, *args)

        return noted

    for name in ("_run", "_check", "_time", "_end"):
        monkeypatch.setattr(engine._Measurement, name, noting(name, getattr(engine._Measurement, name)))
    return done


@pytest.mark.parametrize("most", [1, 2, 4, 16])
def test_rows_of_groups_are_those_of_single_rows_in_their_order(most, together):
    made = list(together(most))
    assert [row.op for row in made] == [call.op for call in CALLS]
    assert [row.check for row in made] == ["ok", "skipped", *["ok"] * 4]
    assert all((row.us_median is not None) == (row.check == "ok") for row in made)


def test_a_group_is_checked_before_its_first_row_is_timed(together, steps):
    list(together(3))
    first, behind = steps[: steps.index("_end")], steps[steps.index("_end") :]
    assert sorted(first[:6]) == ["_check"] * 3 + ["_run"] * 3 and first[6:] == ["_time"] * 3
    assert behind[:6] == ["_end", "_check"] * 3 and behind.count("_time") == 2


def test_compiling_together_is_counted_for_each_row(together):
    by_op = {row.op: row for row in together(16)}
    assert all(by_op[name].us_compile > 0 for name in ("tanh", "softmax", "conv2d"))


def test_rows_that_memory_does_not_hold_together_are_groups_of_their_own(together, steps, monkeypatch):
    monkeypatch.setattr(engine, "_GROUP_SHARE", 0.0)
    list(together(16))
    assert [name for name in steps if name in ("_run", "_time")] == ["_run", "_time"] * 5


def test_what_fails_in_a_group_is_its_row_alone(together, monkeypatch):
    without(monkeypatch, "softmax")
    rows = list(together(16))
    assert [row.check for row in rows] == ["ok", "skipped", "ok", "ok", "error", "ok"]
    assert "no such kernel" in rows[4].why


def without(monkeypatch, *kernels):
    """No code of these kernels; every one without any."""
    code = runtime.pipeline_spirv

    def broken(shader, fixed):
        if not kernels or shader.stem in kernels:
            raise DeviceError(f"no such kernel: {shader.key}")
        return code(shader, fixed)

    monkeypatch.setattr(runtime, "pipeline_spirv", broken)


def test_ctrl_c_gives_the_rows_that_were_timed(together, monkeypatch):
    sample, close, timed, closed, made = engine.sample, Executable.close, [], [], []

    def stopping(*args):
        if len(timed) == 2:
            raise KeyboardInterrupt
        timed.append(args)
        return sample(*args)

    monkeypatch.setattr(engine, "sample", stopping)
    monkeypatch.setattr(Executable, "close", lambda self: (closed.append(self), close(self)))
    with pytest.raises(KeyboardInterrupt):
        made.extend((row.op, row.check) for row in together(16))
    assert made == [("relu", "ok"), ("tanh", "ok")] and len(closed) == 5


def test_tasks_without_a_call_keep_their_place(live, monkeypatch, device):
    monkeypatch.setattr(engine, "_AHEAD", SimpleNamespace(of=lambda facts: engine._Ahead(16, 2)))
    monkeypatch.delitem(OPS, "conv2d_backward_weight")
    forward, data, weight = parse_entries("conv -n 1 -c 3 -H 9 -W 9 -k 4 -y 3 -x 3")
    tasks = make_tasks([weight, forward, weight, data, weight], Routes(), live.device)
    rows = list(run_tasks(tasks, device=device, options=QUICK, floors=None))
    assert [row.check for row in rows] == ["no op", "ok", "no op", "ok", "no op"]


def test_a_clock_that_is_up_is_not_brought_up_again(live, monkeypatch):
    clock = Clock(live.device)
    monkeypatch.setattr(clock, "_policy", ClockUp(0.5, 3600.0))
    assert clock.wanted_s == 0.5
    clock.worked()
    assert clock.wanted_s == 0.0
    monkeypatch.setattr(clock, "_policy", ClockUp(0.5, 0.0))
    assert clock.wanted_s == 0.5


# ---- pipelines by several threads


@pytest.fixture
def launch(live, device):
    """A launch of which the pipeline is not there yet."""
    with vkconv.load(conv_graph(), device) as session:
        found = next(command for command in session.plan.run if isinstance(command, Launch))
    live._pipelines.clear()
    return found


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_want_one_pipeline_compile_it_once(live, launch):
    spans, found = [], []
    in_threads(8, lambda: found.append(live.pipeline(launch, spans)))
    assert len(spans) == 1 and len(found) == 8 and len({id(one) for one in found}) == 1


def test_a_thread_that_waited_for_what_failed_has_an_error_of_its_own(live, launch, monkeypatch):
    errors = []

    def ask():
        with pytest.raises(DeviceError, match="no such kernel") as failed:
            live.pipeline(launch, [])
        errors.append(failed.value)

    with monkeypatch.context() as patch:
        without(patch)
        in_threads(4, ask)
    assert len({id(error) for error in errors}) == 4
    assert live.pipeline(launch, []) is not None


def test_a_session_that_compiles_in_threads_says_so_in_one_span(live, device):
    x = normals(1, 3, 9, 11, seed=7)
    with vkconv.load(conv_graph(), device) as session:
        assert_right(session.run({"x": x}), x)
        (span,) = (one for one in session.spans if one.name.startswith("compile"))
        assert span.name == f"compile {len(live._pipelines)} pipelines" and len(live._pipelines) > 1
        assert session.timings.compile_us == span.us and session.timings.load_us >= 0


def test_a_kernel_that_does_not_compile_is_named_by_its_node(live, device, monkeypatch):
    with monkeypatch.context() as patch:
        without(patch)
        with pytest.raises(DeviceError, match="no such kernel"):
            vkconv.load(conv_graph(), device)
    with vkconv.load(conv_graph(), device):
        assert len(live._pipelines) > 1
