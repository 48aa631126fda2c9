"""Runs in flight: submitted to the device and awaited by a thread of their own, in order."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from vkconv.core import UsageError, VkconvError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Flight(Protocol[T_co]):
    """A run that the device has."""

    def finish(self) -> T_co:
        """Wait for its end and give what it made; VkconvError where it failed."""


class Flights:
    """At most ``most`` runs at a time, whose futures get their results in the order in which the runs came.

    A caller first takes `room`, then gives a flight to `add`, or gives the room back by `leave`.
    """

    def __init__(self, most: int, name: str) -> None:
        self.most = most
        self._name = name
        self._room = threading.Semaphore(most)
        self._empty = threading.Condition()
        self._count = 0
        # One thread, which ends with this object, or with the process once it has seen the last run.
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix=f"vkconv {name}")
        self._thread: int | None = None
        self._process = os.getpid()

    def room(self) -> None:
        """Wait until fewer than ``most`` runs are in flight. UsageError for a wait that could not end: in a callback of
        a future, which keeps the thread that awaits the runs."""
        if self._room.acquire(blocking=threading.get_ident() != self._thread):
            return
        raise UsageError(
            f"{self._name!r} has {self.most} runs in flight, and a callback of a future cannot wait for them: submit "
            "from another thread"
        )

    def leave(self) -> None:
        """Give back room that was taken for nothing."""
        self._room.release()

    def add(self, flight: Flight[T]) -> "Future[T]":
        """A future of what the flight makes. Nobody can cancel it: the device has the run."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._empty:
            self._count += 1
        self._waiter.submit(self._land, flight, future)
        return future

    def drain(self) -> None:
        """Wait until no run is in flight; in a forked child, whose copy of the thread does not run, not at all."""
        if os.getpid() != self._process:
            return
        with self._empty:
            self._empty.wait_for(lambda: self._count == 0)

    def close(self) -> None:
        """Wait for the runs, and let the thread go."""
        self.drain()
        self._waiter.shutdown(wait=False)

    def _land(self, flight: Flight[T], future: "Future[T]") -> None:
        self._thread = threading.get_ident()
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = flight.finish()
        except BaseException as error:
            failed = error
        del flight
        self._room.release()
        with self._empty:  # before the callbacks, which may wait for those who wait here
            self._count -= 1
            self._empty.notify_all()
        if failed is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(
                failed if isinstance(failed, VkconvError) else VkconvError(f"{self._name!r}: {failed!r}")
            )
