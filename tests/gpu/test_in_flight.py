"""Several runs of a session on their way: right, in order, bounded, from many threads; time-outs, and asyncio."""

import asyncio
import queue
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, normals, slow_graph

import vkconv
from vkconv import Graph, Node, Options, Session, TensorSpec
from vkconv.backend import executable
from vkconv.core import DeviceError, InputError, LimitError, UsageError, VkconvError
from vkconv.plan.transfers import POLLING_US

pytestmark = pytest.mark.gpu

TINY = Graph({"x": TensorSpec((7,))}, ("y",), (Node("n", "neg", ("x",), ("y",)),), {}, "tiny")


def inputs(count):
    return [normals(1, 3, 9, 11, seed=seed) for seed in range(count)]


@pytest.mark.parametrize("staging", [None, True], ids=["one memory", "staging"])
@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_every_future_has_the_result_of_its_inputs(device, staging, in_flight):
    options = Options(staging=staging)
    with Session(conv_graph(), device, options=options, poison=True, in_flight=in_flight) as session:
        xs = inputs(12)
        futures = [session.submit({"x": x}) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            got, want = future.result(30), session.run({"x": x})
            assert_right(got, x)
            assert all(got[name].tobytes() == want[name].tobytes() for name in want)


def test_the_caller_may_change_inputs_at_once(device):
    x = np.ones(7, np.float32)
    with vkconv.load(TINY, device) as session:
        futures = []
        for i in range(20):
            x[:] = i
            futures.append(session.submit({"x": x}))
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(30)["y"], np.full(7, -i, np.float32))


def test_results_that_stay_and_inputs_that_are_there(device):
    with vkconv.load(conv_graph(), device) as session:
        futures = [session.submit({"x": vkconv.array(x, device)}, out="device") for x in inputs(8)]
        for x, future in zip(inputs(8), futures, strict=True):
            assert_right({name: array.numpy() for name, array in future.result(30).items()}, x)


def ordered(session, threads, each):
    """Submit from several threads at a time; the numbers of threads and submissions in the order of the results."""
    seen, lock = [], threading.Lock()

    def work(thread):
        for i in range(each):
            x = np.full(7, thread * each + i, np.float32)
            future = session.submit({"x": x})
            future.add_done_callback(
                lambda done, x=x, n=(thread, i): seen.append((n, (done.result()["y"] == -x).all()))
            )

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    with lock:
        for worker in workers:
            worker.start()
    for worker in workers:
        worker.join()
    last = threading.Event()  # callbacks come in order, behind results
    session.submit({"x": np.zeros(7, np.float32)}).add_done_callback(lambda _: last.set())
    assert last.wait(60)
    return seen


def test_eight_threads_get_their_results_in_order(device):
    with vkconv.load(TINY, device) as session:
        seen = ordered(session, 8, 40)
        assert len(seen) == 320 and all(right for _, right in seen)
        for thread in range(8):
            assert [i for (t, i), _ in seen if t == thread] == list(range(40))
        (one,) = session._executables.values()
        assert len(one._free) <= 3


def test_shapes_may_change_and_plans_may_go_meanwhile(device):
    graph = Graph({"x": TensorSpec(("n",))}, ("y",), (Node("n", "neg", ("x",), ("y",)),))
    with vkconv.load(graph, device, max_plans=2, in_flight=4) as session:
        xs = [np.arange(1 + i % 5, dtype=np.float32) for i in range(30)]
        futures = [session.submit({"x": x}) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            np.testing.assert_array_equal(future.result(30)["y"], -x)


def test_what_does_not_fit_is_refused_at_once_and_takes_no_room(device):
    with vkconv.load(TINY, device, in_flight=1) as session:
        for _ in range(3):
            with pytest.raises(InputError, match="has shape 8"):
                session.submit({"x": np.zeros(8, np.float32)})
            with pytest.raises(UsageError, match="out is 'gpu'"):
                session.submit({"x": np.zeros(7, np.float32)}, out="gpu")
        assert session.submit({"x": np.zeros(7, np.float32)}).result(30)["y"].shape == (7,)
    with pytest.raises(VkconvError, match="closed"):
        session.submit({"x": np.zeros(7, np.float32)})
    with pytest.raises(UsageError, match="in_flight is 0; a session has at least 1"):
        vkconv.load(TINY, device, in_flight=0)


def test_runs_in_flight_count_in_the_memory_that_is_allowed(device):
    with vkconv.load(TINY, device, in_flight=3) as session:
        memory = session.plan.memory
    most = memory.peak_bytes + 3 * (memory.upload_bytes + memory.download_bytes)
    x = {"x": np.ones(7, np.float32)}
    with vkconv.load(TINY, device, in_flight=3, memory_bytes=most) as session:
        assert session.submit(x).result(30)["y"][0] == -1
    with vkconv.load(TINY, device, in_flight=3, memory_bytes=most - 1) as session:
        assert session.run(x)["y"][0] == -1
        with pytest.raises(LimitError, match=f"take {most} bytes, the memory allowed is {most - 1} bytes"):
            session.submit(x)


def test_asyncio(device):
    async def main(session):
        xs = inputs(10)
        results = await asyncio.gather(*(session.arun({"x": x}) for x in xs))
        for x, outputs in zip(xs, results, strict=True):
            assert_right(outputs, x)
        with pytest.raises(InputError):
            await session.arun({})

    with vkconv.load(conv_graph(), device) as session:
        asyncio.run(main(session))


@pytest.mark.alone
def test_runs_wait_for_room_and_closing_waits_for_runs(device):
    graph, x = slow_graph(0.2)
    session = vkconv.load(graph, device, in_flight=2)
    session.run(x)
    started = time.perf_counter()
    first, second = session.submit(x), session.submit(x)
    assert not first.cancel()
    submitted_s = time.perf_counter() - started
    third = session.submit(x)
    assert first.done() and submitted_s < time.perf_counter() - started
    session.close()
    assert second.done() and third.done()
    want = x["v0"]
    for future in (first, second, third):
        np.testing.assert_array_equal(next(iter(future.result().values())), want)


# ---- callbacks that use the session


CALLBACKS = """
import sys, threading
import numpy as np
import vkconv
from vkconv import Graph, Node, TensorSpec

mode, place = sys.argv[1:]
square = TensorSpec(("n", "n"))
graph = Graph({"a": square, "b": square}, ("y",), (Node("m", "matmul", ("a", "b"), ("y",)),), {}, "mm")
large, small = (np.random.default_rng(n).random((n, n), np.float32) for n in (700, 8))
x, other = {"a": large, "b": large}, {"a": small, "b": small}
session = vkconv.load(graph, max_plans=1, in_flight=2)
want, want_other = session.run(x)["y"], session.run(other)["y"]
session.run(x)
went, done, said = threading.Event(), threading.Event(), []

def use():
    if mode == "close":
        session.close()
    elif mode == "plan":
        np.testing.assert_array_equal(session.run(other)["y"], want_other)
    else:
        for _ in range(4):
            np.testing.assert_array_equal(session.submit(x).result()["y"], want)

def called(future):
    try:
        if place == "main":
            went.wait()
            use_here = lambda: session.submit(x).result() if mode == "submit" else session.run(x)
            said.append(use_here()["y"])
        else:
            said.append(use())
    except vkconv.VkconvError as error:
        said.append(str(error))
    done.set()

first = session.submit(x)
first.add_done_callback(called)
second = session.submit(x)
first.result()
if place == "main":
    threading.Timer(0.2, went.set).start()
    use()
assert done.wait(60)
assert all((future.result()["y"] == want).all() for future in (first, second))
if place == "callback":
    assert said == [None], said
elif mode == "close":
    assert said == ["session 'mm' is closed; load the model again"], said
else:
    np.testing.assert_array_equal(said[0], want)
session.close()
"""


@pytest.mark.parametrize("place", ["main", "callback"])
@pytest.mark.parametrize("mode", ["close", "plan", "submit"])
def test_callbacks_may_use_the_session(mode, place):
    """While the main thread closes it, makes a plan that takes the place of another, or submits; and themselves."""
    subprocess.run([sys.executable, "-c", CALLBACKS, mode, place], check=True, timeout=90)


# ---- time-outs


@pytest.mark.alone
@pytest.mark.parametrize("out", ["host", "device"])
def test_a_run_that_takes_too_long_times_out_and_the_session_goes_on(device, out):
    graph, x = slow_graph(1.5)
    session = vkconv.load(graph, device, in_flight=2)
    session.run(x)
    started = time.perf_counter()
    futures = [session.submit(x, timeout_s=0.1, out=out) for _ in range(2)]
    for future in futures:
        with pytest.raises(DeviceError, match=r"did not finish a run in flight within 0.1 s of its submission"):
            future.result(30)
    assert time.perf_counter() - started < 1
    with pytest.raises(DeviceError, match=r"within 0\.1 s"):
        asyncio.run(session.arun(x, timeout_s=0.1))
    for timeout_s in (None, 60):
        outputs = session.submit(x, timeout_s=timeout_s, out=out).result(120)
        np.testing.assert_array_equal(next(iter(outputs.values())), x["v0"])
    np.testing.assert_array_equal(next(iter(session.run(x).values())), x["v0"])
    late = session.submit(x, timeout_s=0.1, out=out)
    started = time.perf_counter()
    session.close()
    assert time.perf_counter() - started < 1
    with pytest.raises(DeviceError, match=r"within 0\.1 s"):
        late.result(0)


@pytest.mark.alone
@pytest.mark.parametrize("out", ["host", "device"])
def test_runs_that_timed_out_hold_no_more_than_so_much_memory(device, out, monkeypatch):
    """Each has ports of its own, which are used again once the device is done with it."""
    monkeypatch.setattr(executable, "MOST_LATE", 2)
    graph, x = slow_graph(0.5)
    with vkconv.load(graph, device, in_flight=2) as session:
        session.run(x)
        (one,) = session._executables.values()
        late = [session.submit(x, timeout_s=0.01, out=out) for _ in range(2)]
        for future in late:
            with pytest.raises(DeviceError, match=r"within 0\.01 s"):
                future.result(30)
        with pytest.raises(DeviceError, match="2 runs in flight, which timed out, are still at work"):
            session.submit(x, out=out)
        np.testing.assert_array_equal(next(iter(session.run(x).values())), x["v0"])  # behind them
        outputs = session.submit(x, out=out).result(60)
        np.testing.assert_array_equal(np.asarray(next(iter(outputs.values()))), x["v0"])
        assert not one._late and len(one._free) <= 2 and len(one._pool._free) <= 2


def test_what_is_no_time_out_is_refused_and_takes_no_room(device):
    with vkconv.load(TINY, device, in_flight=1) as session:
        for _ in range(2):
            with pytest.raises(InputError, match="timeout_s is -1"):
                session.submit({"x": np.zeros(7, np.float32)}, timeout_s=-1)
        assert session.submit({"x": np.zeros(7, np.float32)}, timeout_s=float("inf")).result(30)


def test_waits_poll_as_the_policy_says(device, monkeypatch):
    with vkconv.load(TINY, device) as session:
        recordings, polled = [], []
        (one,) = session._executables.values()
        commands = one._commands

        class Watched:
            def __init__(self, recording):
                self.recording = recording

            def __getattr__(self, name):
                return getattr(self.recording, name)

            def wait(self, timeout_ns, spin_us):
                polled.append(spin_us)
                return self.recording.wait(timeout_ns, spin_us)

            def run(self, timeout_ns, spin_us):
                polled.append(spin_us)
                self.recording.run(timeout_ns, spin_us)

        def watched(*how, **more):
            recordings.append(Watched(commands(*how, **more)))
            return recordings[-1]

        monkeypatch.setattr(one, "_commands", watched)
        monkeypatch.setattr(session._live, "polling_us", 12.5)
        x = {"x": np.ones(7, np.float32)}
        session.run(x)
        session.run(x, out="device")
        session.submit(x).result(30)
        session.submit(x, out="device").result(30)
        session.measure(x)
    assert len(recordings) == 5 and len(polled) >= 5 and set(polled) == {12.5}
    assert session._live.polling_us == 12.5 and POLLING_US.of(session.device) > 0


# ---- asyncio


def test_awaited_runs_end_in_order_and_leave_the_loops_threads_alone(device):
    async def main(session):
        came = []

        async def one(i):
            outputs = await session.arun({"x": np.full(7, i, np.float32)})
            came.append((i, float(outputs["y"][0])))

        for _ in range(5):
            await asyncio.gather(*(one(i) for i in range(200)))
            assert came == [(i, -float(i)) for i in range(200)]
            came.clear()
        assert asyncio.get_running_loop()._default_executor is None

    with vkconv.load(TINY, device) as session:
        asyncio.run(main(session))


def test_a_callback_may_await_runs(device):
    came = queue.Queue()

    def called(future):
        came.put(asyncio.run(session.arun({"x": future.result()["y"]}))["y"])

    with vkconv.load(TINY, device, in_flight=1) as session:
        x = np.arange(7, dtype=np.float32)
        session.submit({"x": x}).add_done_callback(called)
        np.testing.assert_array_equal(came.get(timeout=30), x)


@pytest.mark.alone
def test_awaited_runs_that_wait_for_room_can_be_cancelled(device):
    graph, x = slow_graph(0.3)

    async def main(session):
        tasks = [asyncio.create_task(session.arun(x)) for _ in range(8)]
        await asyncio.sleep(0.1)
        for task in tasks[1:]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], dict)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[1:])

    with vkconv.load(graph, device, in_flight=1) as session:
        session.run(x)
        started = time.perf_counter()
        asyncio.run(main(session))
        session._flights.drain()
        one = session.measure(x)[1].wall_us / 1e6
        assert time.perf_counter() - started < 5 * one + 1  # most did not run
    with pytest.raises(UsageError, match="closed"):
        asyncio.run(session.arun(x))
