"""Several runs on their way: right, in order, bounded, from many threads; failures, and asyncio."""

import asyncio
import itertools
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from session_kit import assert_right, conv_graph, normals, slow_graph

import vkconv
from vkconv import Graph, Node, Options, Session, TensorSpec
from vkconv.backend.flights import Flights
from vkconv.core import DeviceError, InputError, LimitError, UsageError, VkconvError

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
    session.submit({"x": np.zeros(7, np.float32)}).result(60)
    return seen


def test_eight_threads_get_their_results_in_order(device):
    with vkconv.load(TINY, device) as session:
        seen = ordered(session, 8, 40)
        assert len(seen) == 320 and all(right for _, right in seen)
        for thread in range(8):
            assert [i for (t, i), _ in seen if t == thread] == list(range(40))
        (executable,) = session._executables.values()
        assert len(executable._free) <= 3


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


# ---- the queue of them by itself


class Landed:
    """A flight that ends when it is let."""

    def __init__(self, result, gate=None):
        self.result, self.gate = result, gate

    def finish(self):
        if self.gate is not None:
            assert self.gate.wait(30)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_a_failure_is_its_own_futures_alone():
    flights = Flights(8, "net")
    made = []
    for result in (1, DeviceError("lost"), ValueError("odd"), 2):
        flights.room()
        made.append(flights.add(Landed(result)))
    assert (made[0].result(30), made[3].result(30)) == (1, 2)
    with pytest.raises(DeviceError, match="lost"):
        made[1].result(30)
    with pytest.raises(VkconvError, match="'net': ValueError"):
        made[2].result(30)
    for _ in range(8):  # all room is there again
        flights.room()
    flights.close()


def test_a_callback_that_would_wait_for_itself_is_an_error():
    flights, gate, failures = Flights(2, "net"), threading.Event(), []

    def again(_):
        for _ in itertools.repeat(None, 2):
            try:
                flights.room()
            except UsageError as error:
                failures.append(str(error))

    flights.room()
    first = flights.add(Landed(1, gate))
    first.add_done_callback(again)
    flights.room()
    flights.add(Landed(2))
    gate.set()
    flights.drain()
    flights.close()
    assert failures and "a callback of a future cannot wait" in failures[0]


FORKED = """
import os, threading
from vkconv.backend.flights import Flights
gate = threading.Event()

class Held:
    def finish(self):
        gate.wait()

flights = Flights(2, "net")
flights.room()
future = flights.add(Held())
child = os.fork()
if child == 0:
    flights.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
gate.set()
future.result(30)
flights.close()
"""


def test_a_forked_child_does_not_wait_for_a_thread_that_it_has_not():
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
