"""Runs in flight: submitted to the device, or to a thread that drives it, and awaited in order."""

import contextlib
import dataclasses
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

import numpy as np

from vkconv.core import DeviceError, InputError, UsageError, VkconvError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# The longest that the bridge waits.
FOREVER_NS = (1 << 63) - 1
# How often whoever waits for a run looks whether another one behind it is late.
_LOOK_S = 0.1
# After how many runs whoever awaits them looks whether the interpreter ends.
_LOOK_EVERY = 16
# How long a run waits for callbacks of others: slow ones hold it back, those that wait for it do not for ever.
_PATIENCE_S = 1.0
_LOG = logging.getLogger("concurrent.futures")  # where futures say that a callback failed


@dataclasses.dataclass(frozen=True)
class Deadline:
    """When a run must have ended, in seconds of `time.monotonic`; None for never."""

    timeout_s: float | None = None
    at_s: float | None = None

    @classmethod
    def after(cls, timeout_s: float | None) -> Self:
        """The one so many seconds from now; InputError for what is no length of time."""
        nanoseconds = timeout_in_ns(timeout_s)
        return cls() if nanoseconds >= FOREVER_NS else cls(timeout_s, time.monotonic() + nanoseconds / 1e9)

    @property
    def left_s(self) -> float | None:
        """The seconds until then, 0 at least."""
        return None if self.at_s is None else max(0.0, self.at_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.at_s is not None and time.monotonic() >= self.at_s


class Flight(Protocol[T_co]):
    """A run that is on its way."""

    def arrives(self, timeout_ns: int) -> bool:
        """Wait for its end, so long at most; whether it ended. VkconvError where it failed."""

    def finish(self) -> T_co:
        """What it made, once it has ended."""

    def give_up(self) -> None:
        """Let go of it, though it may not have ended."""


class Job(Generic[T]):
    """A run that the host drives, from what steers one part of it to the next: it begins when those before it are
    over. ``run`` is given the seconds that are left to it."""

    def __init__(self, run: Callable[[float | None], T], deadline: Deadline) -> None:
        self._run, self._deadline = run, deadline
        self._made: list[T] = []

    def arrives(self, timeout_ns: int) -> bool:
        if self._deadline.is_over:  # what has not begun must leave nothing behind, such as rows of caches
            return False
        self._made.append(self._run(self._deadline.left_s))
        return True

    def finish(self) -> T:
        return self._made.pop()

    def give_up(self) -> None:
        pass


class FlightFuture(Future[T]):
    """A future that leaves its callbacks to `settle`: what users do in them must not keep the thread that sets the
    results."""

    def __init__(self) -> None:
        super().__init__()
        self._own_lock = threading.Lock()
        self._asked: list[Callable[[Future[T]], object]] | None = []

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        with self._own_lock:
            if self._asked is not None:
                self._asked.append(fn)
                return
        super().add_done_callback(fn)

    def is_settled_unasked(self) -> bool:
        """Settle it where there is nothing to call; whether that is so."""
        with self._own_lock:
            if not self._asked:
                self._asked = None
            return self._asked is None

    def settle(self) -> None:
        """Call what is to be called; from then on that happens at once."""
        while not self.is_settled_unasked():
            with self._own_lock:
                asked, self._asked = self._asked or [], []
            for fn in asked:
                try:
                    super().add_done_callback(fn)  # it is done, so this calls, and logs what errors are raised
                except BaseException:  # such as SystemExit: the callbacks of others must be called
                    _LOG.exception("exception calling callback for %r", self)


@dataclasses.dataclass(eq=False)
class _Entry(Generic[T]):
    flight: Flight[T]
    future: FlightFuture[T]
    deadline: Deadline


class Flights:
    """At most ``most`` runs at a time, whose futures get their results in the order in which the runs came.

    A caller first takes `room`, then gives a flight to `add`, or gives the room back by `leave`. Of three threads, each
    made when it is first wanted, one awaits the runs, one calls the callbacks of their futures, and one submits what
    came by `later`. The first runs no code of users, so that whatever waits for runs gets on, in callbacks too.
    """

    def __init__(self, most: int, name: str) -> None:
        self.most = most
        self._name = name
        self._lock = threading.Lock()
        self._roomy, self._called, self._empty = (threading.Condition(self._lock) for _ in range(3))
        self._taken = 0  # rooms
        self._entries: deque[_Entry[Any]] = deque()  # that have not ended
        self._landing: deque[_Entry[Any]] = deque()  # that are yet to be awaited
        self._uncalled: deque[FlightFuture[Any]] = deque()  # with results, whose callbacks were not all called
        self._is_landing = self._is_calling = False
        self._closed = self._ends = False
        # They end with this object, or with the process once it has seen the last run.
        self._waiter, self._caller, self._submitter = (
            ThreadPoolExecutor(1, thread_name_prefix=f"vkconv {name}: {does}") for does in ("runs", "calls", "submits")
        )
        self._waiting_thread: int | None = None
        self._calling_thread: int | None = None
        self._process = os.getpid()

    def room(self, deadline: Deadline) -> None:
        """Wait until fewer than ``most`` runs are in flight. Where callbacks of as many that ended are still to be
        called, each of which holds results, wait for those too, but not in a callback, and for a second at most: they
        may themselves wait for this thread. DeviceError where the deadline passes."""
        me = threading.get_ident()
        if me == self._waiting_thread:
            self._refuse("submit")
        patience_s = 0.0 if me == self._calling_thread else _PATIENCE_S
        with self._lock:
            while True:
                while self._taken >= self.most:
                    self._wait(self._roomy, deadline)
                if patience_s <= 0 or len(self._uncalled) < self.most:
                    break
                began_s = time.monotonic()
                self._wait(self._called, deadline, patience_s)
                patience_s -= time.monotonic() - began_s
            self._taken += 1
            if self._taken < self.most:  # another one need not wait for the next change
                self._roomy.notify()

    def _wait(self, changed: threading.Condition, deadline: Deadline, most_s: float | None = None) -> None:
        """Wait for a change that may make room, or for ``most_s``; DeviceError where the deadline passes."""
        bounds_s = [bound_s for bound_s in (deadline.left_s, most_s) if bound_s is not None]
        if not changed.wait(min(bounds_s, default=None)) and deadline.is_over:
            self._roomy.notify()  # whoever else waits may have what this one leaves
            raise DeviceError(
                f"{self._name!r}: there was no room for another run within {deadline.timeout_s:g} s: "
                f"{self._taken} are in flight, and callbacks of {len(self._uncalled)} are still to be called"
            )

    def leave(self) -> None:
        """Give back room that was taken for nothing."""
        with self._lock:
            self._give_back()

    def _give_back(self) -> None:
        self._taken -= 1
        self._roomy.notify()

    def add(self, flight: Flight[T], deadline: Deadline) -> Future[T]:
        """A future of what the flight makes. Nobody can cancel it: the device has the run, or is to have it next."""
        entry = _Entry(flight, FlightFuture[T](), deadline)
        entry.future.set_running_or_notify_cancel()
        try:
            with self._lock:
                self._check_open()
                if not self._is_landing:
                    self._hand_over(self._waiter, self._land_all)
                    self._is_landing = True
                self._entries.append(entry)
                self._landing.append(entry)
        except VkconvError:  # the device may be at work on it
            flight.give_up()
            raise
        return entry.future

    def later(self, submit: Callable[[], Future[T]]) -> Future[T]:
        """A future of a run that is yet to be submitted, in the order of these calls. It can be cancelled until then.
        UsageError where it is too late for any."""
        relay: Future[T] = Future()

        def begin() -> None:
            if not relay.set_running_or_notify_cancel():
                return
            try:
                # Not as callbacks of users are called, which may wait for this.
                Future.add_done_callback(submit(), pass_on)
            except BaseException as error:
                relay.set_exception(error)

        def pass_on(run: Future[T]) -> None:
            error = run.exception()
            if error is None:
                relay.set_result(run.result())
            else:
                relay.set_exception(error)

        with self._lock:
            self._check_open()
            try:
                self._hand_over(self._submitter, begin)
            except VkconvError:
                relay.cancel()  # a thread that starts later finds it all the same
                raise
        return relay

    def drain(self) -> None:
        """Wait until no run is in flight; in a forked child, whose copy of the thread does not run, not at all."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._entries:
                if threading.get_ident() == self._waiting_thread:
                    self._refuse("wait for runs")
                self._empty.wait_for(lambda: not self._entries)

    def close(self) -> None:
        """Take no more runs, wait for those that are there, and let the threads go."""
        if os.getpid() == self._process:  # in a child the lock may be held for ever
            with self._lock:
                self._closed = True
        self.drain()
        for thread in (self._waiter, self._caller, self._submitter):
            thread.shutdown(wait=False)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"session {self._name!r} is closed; load the model again")
        if self._ends:
            raise self._too_late()

    def _too_late(self) -> UsageError:
        return UsageError(f"{self._name!r}: the interpreter ends; nothing awaits a run any more")

    def _hand_over(self, thread: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        """Have a thread do something; UsageError where the interpreter ends, DeviceError where none can be started."""
        try:
            thread.submit(work)
        except RuntimeError as error:
            if "shutdown" in str(error):  # Python has no other word for it
                raise self._too_late() from error
            raise DeviceError(
                f"{self._name!r}: no thread starts that awaits runs ({error}): end other threads or processes, or "
                "allow more (ulimit -u, the limit of the container)"
            ) from error

    def _refuse(self, what: str) -> NoReturn:
        # Only what the garbage collector calls, such as a user's __del__, can come here.
        raise UsageError(f"{self._name!r}: the thread that awaits runs cannot {what}; use another one")

    def _land_all(self) -> None:
        self._waiting_thread = threading.get_ident()
        for landed in itertools.count(1):
            with self._lock:
                if not self._landing:
                    self._is_landing = False
                    return
                entry = self._landing.popleft()
            self._land(entry)
            del entry  # what it made is its future's alone
            if landed % _LOOK_EVERY == 0 and not self._ends:
                try:
                    self._waiter.submit(self._land_all)
                except RuntimeError:  # the interpreter ends, and waits for this thread: a daemon must add no more
                    self._ends = True
                else:
                    return

    def _land(self, entry: _Entry[T]) -> None:
        made: T | None = None
        failed: BaseException | None = None
        while not entry.future.done():  # it may have been late behind others
            left_s = entry.deadline.left_s
            try:
                if not entry.flight.arrives(int(1e9 * (_LOOK_S if left_s is None else min(left_s, _LOOK_S)))):
                    self._end_late()
                    continue
                made = entry.flight.finish()
            except BaseException as error:
                failed = error
            self._end(entry, made, failed)

    def _end_late(self) -> None:
        """Fail the runs that have no time left."""
        with self._lock:
            late = [entry for entry in self._entries if entry.deadline.is_over]
        for entry in late:
            self._end(
                entry,
                None,
                DeviceError(
                    f"{self._name!r}: the device did not finish a run in flight within {entry.deadline.timeout_s:g} s "
                    "of its submission, those before it included; it may still be at work: wait, or close the session"
                ),
            )

    def _end(self, entry: _Entry[T], made: T | None, failed: BaseException | None) -> None:
        future = entry.future
        try:
            if failed is None:
                future.set_result(made)  # type: ignore[arg-type]
            else:
                future.set_exception(
                    failed if isinstance(failed, VkconvError) else VkconvError(f"{self._name!r}: {failed!r}")
                )
                with contextlib.suppress(Exception):  # nobody could do anything about it
                    entry.flight.give_up()
        finally:
            self._leave_behind(entry)

    def _leave_behind(self, entry: _Entry[Any]) -> None:
        """Make room, and have callbacks called: behind those that are still to be called, so that they come in order,
        and by another thread, since users may do in them what waits for runs."""
        calls_here = False
        with self._lock:
            self._entries.remove(entry)
            if self._uncalled or not entry.future.is_settled_unasked():
                self._uncalled.append(entry.future)
                if not self._is_calling:
                    self._is_calling = True
                    try:
                        self._caller.submit(self._call_all)
                    except RuntimeError:  # the interpreter ends, and starts no thread
                        calls_here = True
            self._give_back()
            if not self._entries:
                self._empty.notify_all()
        if calls_here:
            self._call_all()

    def _call_all(self) -> None:
        me = threading.get_ident()
        if me != self._waiting_thread:
            self._calling_thread = me
        while True:
            with self._lock:
                if not self._uncalled:
                    self._is_calling = False
                    return
                future = self._uncalled[0]
            future.settle()
            del future
            with self._lock:
                self._uncalled.popleft()
                self._called.notify_all()


def timeout_in_ns(timeout_s: float | None) -> int:
    """Nanoseconds of a time-out, at most `FOREVER_NS`, as with None; InputError for what is no length of time."""
    if timeout_s is None:
        return FOREVER_NS
    if not isinstance(timeout_s, int | float | np.integer | np.floating) or not timeout_s >= 0:
        raise InputError(f"timeout_s is {timeout_s!r}; give a number of seconds, 0 or more")
    return min(int(float(min(timeout_s, 1e10)) * 1e9), FOREVER_NS)
