"""The queue of runs in flight by itself: order, failures, callbacks, room, time-outs, forks."""

import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vkconv.backend import flights as flights_module
from vkconv.backend.flights import Deadline, Flights, Job
from vkconv.core import DeviceError, UsageError, VkconvError

pytestmark = pytest.mark.gpu


class Landed:
    """A flight that ends when it is let."""

    def __init__(self, result, gate=None):
        self.result, self.gate, self.given_up = result, gate, False

    def arrives(self, timeout_ns):
        return self.gate is None or self.gate.wait(timeout_ns / 1e9)

    def finish(self):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def give_up(self):
        self.given_up = True


def flown(flights, result, gate=None, timeout_s=None):
    """A flight in the queue: it and its future."""
    deadline, flight = Deadline.after(timeout_s), Landed(result, gate)
    flights.room(deadline)
    return flight, flights.add(flight, deadline)


def test_a_failure_is_its_own_futures_alone():
    flights = Flights(8, "net")
    made = [flown(flights, result)[1] for result in (1, DeviceError("lost"), ValueError("odd"), 2)]
    assert (made[0].result(30), made[3].result(30)) == (1, 2)
    with pytest.raises(DeviceError, match="lost"):
        made[1].result(30)
    with pytest.raises(VkconvError, match="'net': ValueError"):
        made[2].result(30)
    for _ in range(8):  # all room is there again
        flights.room(Deadline.after(30))
    flights.close()


def test_a_callback_may_wait_for_what_it_submits():
    flights, gate, came = Flights(1, "net"), threading.Event(), queue.Queue()

    def again(_):
        for i in range(3):
            came.put(flown(flights, i)[1].result(30))
        flights.drain()
        came.put("drained")

    flown(flights, 7, gate)[1].add_done_callback(again)
    gate.set()
    assert [came.get(timeout=30) for _ in range(4)] == [0, 1, 2, "drained"]
    flights.close()


def test_callbacks_come_in_order_however_late_they_are_asked_for():
    flights, gate, came = Flights(3, "net"), threading.Event(), []
    first, second, third = (flown(flights, i)[1] for i in range(3))
    held = flown(flights, 3, gate)[1]
    held.add_done_callback(lambda _: (time.sleep(0.2), came.append(3)))
    held.add_done_callback(lambda _: 1 / 0)  # logged, and nobody's trouble
    held.add_done_callback(lambda _: sys.exit(3))
    last = flown(flights, 4)[1]
    gate.set()
    assert last.result(30) == 4
    last.add_done_callback(lambda _: came.append(4))  # it has its result, but the one before it is still calling
    first.add_done_callback(lambda _: came.append(0))
    flights.room(Deadline.after(30))
    while len(came) < 3:
        time.sleep(0.001)
    assert came == [0, 3, 4] and second.result() + third.result() == 3
    flights.close()


def test_a_callback_may_wait_for_a_thread_that_submits(monkeypatch):
    """Though that one waits for callbacks of others: after a while it no longer does."""
    monkeypatch.setattr(flights_module, "_PATIENCE_S", 0.05)
    flights, came = Flights(1, "net"), queue.Queue()

    def again(_):
        for i in range(3):
            with ThreadPoolExecutor(1) as pool:
                came.put(pool.submit(lambda i=i: flown(flights, i)[1].result(30)).result(30))

    flown(flights, 7)[1].add_done_callback(again)
    flown(flights, 8)[1].add_done_callback(lambda _: came.put("second"))
    assert [came.get(timeout=30) for _ in range(4)] == [0, 1, 2, "second"]
    flights.close()


def test_slow_callbacks_hold_runs_back():
    flights, came = Flights(2, "net"), []
    for i in range(12):
        flown(flights, i)[1].add_done_callback(lambda future: (time.sleep(0.02), came.append(future.result())))
        assert i - len(came) <= 4
    while len(came) < 12:
        time.sleep(0.001)
    assert came == list(range(12))
    flights.close()


def test_results_whose_callbacks_wait_are_bounded():
    flights, gate = Flights(2, "net"), threading.Event()
    for i in range(2):
        flown(flights, i)[1].add_done_callback(lambda _: gate.wait(30))
    flights.drain()
    with pytest.raises(DeviceError, match=r"no room .* within 0.05 s: 0 are in flight, and callbacks of 2"):
        flights.room(Deadline.after(0.05))
    gate.set()
    flights.room(Deadline.after(30))
    flights.close()


def test_no_time_at_all_is_no_time_for_callbacks():
    flights, gate = Flights(1, "net"), threading.Event()
    flown(flights, 0)[1].add_done_callback(lambda _: gate.wait(30))
    flights.drain()
    began_s = time.monotonic()
    with pytest.raises(DeviceError, match=r"no room .* within 0 s"):
        flights.room(Deadline.after(0))
    assert time.monotonic() - began_s < flights_module._PATIENCE_S / 2
    gate.set()
    flights.close()


def test_a_run_for_which_no_thread_starts_is_let_go(monkeypatch):
    flights, deadline, flight, ran = Flights(1, "net"), Deadline(), Landed(1), []

    def refused(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        flights.room(deadline)
        with pytest.raises(DeviceError, match="'net': no thread starts that awaits runs"):
            flights.add(flight, deadline)
        flights.leave()
        with pytest.raises(DeviceError, match="can't start new thread"):
            flights.later(lambda: ran.append(flight))
    assert flight.given_up
    assert flown(flights, 7)[1].result(30) == 7
    assert flights.later(lambda: flown(flights, 8)[1]).result(30) == 8 and not ran
    flights.close()


def test_the_thread_that_awaits_runs_is_told_not_to_wait_for_itself():
    flights, errors = Flights(1, "net"), []

    class Collecting(Landed):
        def finish(self):
            for wait in (flights.drain, lambda: flights.room(Deadline())):
                with pytest.raises(UsageError, match="the thread that awaits runs cannot") as error:
                    wait()
                errors.append(error)

    flights.room(Deadline())
    flights.add(Collecting(None), Deadline()).result(30)
    assert len(errors) == 2
    flights.close()


def test_runs_that_do_not_end_end_in_a_time_out():
    """Also those behind one that may take for ever, and each gives its room back."""
    flights, gate = Flights(3, "net"), threading.Event()
    _, endless = flown(flights, 1, gate)
    late = [flown(flights, i, gate, timeout_s) for i, timeout_s in ((2, 0.2), (3, 0.1))]
    for (flight, future), timeout_s in zip(late, (0.2, 0.1), strict=True):
        with pytest.raises(DeviceError, match=rf"'net': the device did not finish .* within {timeout_s} s"):
            future.result(30)
        flights.room(Deadline.after(30))
        assert flight.given_up
    with pytest.raises(DeviceError, match=r"no room for another run within 0.05 s: 3 are in flight"):
        flights.room(Deadline.after(0.05))
    assert not endless.done()
    gate.set()
    assert endless.result(30) == 1
    flights.close()


def test_jobs_that_are_late_do_not_begin():
    flights, began = Flights(2, "net"), []

    def run(left_s):
        began.append(left_s)
        time.sleep(0.2)

    deadlines = Deadline.after(30), Deadline.after(0.1)
    for deadline in deadlines:
        flights.room(deadline)
    first, second = (flights.add(Job(run, deadline), deadline) for deadline in deadlines)
    with pytest.raises(DeviceError, match=r"within 0\.1 s"):
        second.result(30)
    assert first.result(30) is None and len(began) == 1 and 29 < began[0] <= 30
    flights.close()
    with pytest.raises(UsageError, match="'net' is closed"):
        flights.add(Landed(1), Deadline())
    with pytest.raises(UsageError, match="'net' is closed"):
        flights.later(lambda: None)


FORKED = """
import os, threading
from vkconv.backend.flights import Deadline, Flights, Job
gate = threading.Event()
flights = Flights(2, "net")
flights.room(Deadline())
future = flights.add(Job(lambda left_s: gate.wait(), Deadline()), Deadline())
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


ENDLESS = """
import threading, time
from vkconv.backend.flights import Deadline, Flights

class Short:
    def arrives(self, timeout_ns):
        time.sleep(0.02)
        return True
    def finish(self):
        return None

flights, began = Flights(8, "net"), threading.Event()
def submit():
    while True:
        flights.room(Deadline())
        flights.add(Short(), Deadline())
        began.set()
threading.excepthook = lambda failed: None  # those that are told that it is too late
for _ in range(4):
    threading.Thread(target=submit, daemon=True).start()
began.wait(30)
"""


def test_daemons_that_go_on_submitting_do_not_keep_the_process():
    subprocess.run([sys.executable, "-c", ENDLESS], check=True, timeout=30)


def test_it_is_too_late_to_await_runs_when_the_interpreter_ends():
    code = (
        "import atexit\n"
        "from vkconv.backend.flights import Flights\n"
        "from vkconv.core import UsageError\n"
        "flights = Flights(3, 'net')\n"
        "def end():\n"
        "    try:\n"
        "        flights.later(lambda: None)\n"
        "    except UsageError as error:\n"
        "        print(error)\n"
        "atexit.register(end)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "'net': the interpreter ends; nothing awaits a run any more\n"
