"""Work for many boards at once, over workers of dask.distributed: one worker on each board, one job at a time on it.

A job is a function of vkconv by its name and plain data, so that both ends need the same vkconv. What a job raises,
and the loss of a worker, are outcomes: the other boards go on.
"""

import contextlib
import dataclasses
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from vkconv.core import DeviceError, UsageError, is_count, on_a_line

PREFIX = "dask://"
START = "dask worker tcp://HOST:PORT --name BOARD --nworkers 1 --nthreads 1"
"""What starts a worker, to be typed on each board."""

_CONNECT_S = 10.0
_POLL_S = 0.5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one job of a worker ended: its value, an error, or the loss of the worker, after which no job of it comes.
    ``index`` is that of the job among the worker's."""

    worker: str
    index: int
    value: Any = None
    error: str = ""
    lost: bool = False

    @property
    def ok(self) -> bool:
        return not self.error


def parse_url(text: str) -> str:
    """The address of the scheduler that ``dask://HOST:PORT`` means. Raises UsageError."""
    host, colon, port = text.removeprefix(PREFIX).rstrip("/").rpartition(":")
    if not text.startswith(PREFIX) or not host or not colon or not is_count(port) or not 0 < int(port) < 65536:
        raise UsageError(
            f"--workers {text!r} is not {PREFIX}HOST:PORT, the address of a scheduler of dask.distributed, "
            f"such as {PREFIX}127.0.0.1:8786"
        )
    return f"tcp://{host}:{port}"


class Workers:
    """The workers that a scheduler has, in the order of their names; to be closed, best by ``with``.

    Raises UsageError where dask.distributed is not installed, DeviceError where no scheduler answers or it has no
    worker.
    """

    def __init__(self, url: str) -> None:
        address = parse_url(url)
        self.url = url
        try:
            import dask

            # What is lost is told by the outcomes; the library would log it with its own stack traces.
            dask.config.set({"logging": {"distributed": "critical", "distributed.client": "critical"}})
            # A model is sent to each board whole: that it is large is known.
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"})
            import distributed
        except ImportError:
            raise UsageError("--workers needs dask.distributed: pip install 'vkconv[workers]'") from None
        try:
            self._client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise DeviceError(
                f"no scheduler answers at {url}: {error}. Start one with: "
                f"dask scheduler --port {address.rpartition(':')[2]}"
            ) from None
        try:
            addresses = list(self._client.nthreads())
            if not addresses:
                raise DeviceError(f"{url} has no worker: start one on each board with: {START}")
            named = {outcome.worker: outcome for outcome in self.each(_introduce, {a: [()] for a in addresses})}
        except BaseException:
            self.close()
            raise
        told = {address: named[address].value or {} for address in addresses}
        self.names = dict(sorted(((a, str(told[a].get("name", a))) for a in addresses), key=lambda item: item[1]))
        """The workers' names by address: an address again where a worker was given no name."""
        self.problems: Mapping[str, str] = {a: problem for a in self.names if (problem := _problem(named[a]))}
        """Why a worker can do nothing, by address."""

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self._client.close(timeout=_POLL_S)

    @property
    def usable(self) -> list[str]:
        """The addresses of the workers that can be given jobs."""
        return [address for address in self.names if address not in self.problems]

    def each(self, function: Callable[..., Any], jobs: Mapping[str, Sequence[tuple[Any, ...]]]) -> Iterator[Outcome]:
        """Call ``function`` with each job's arguments on the worker of its address, each worker's jobs in their
        order, and give the outcomes as they come."""
        ended: queue.Queue[Any] = queue.Queue()
        running: dict[Any, tuple[str, int]] = {}

        def start(address: str, index: int) -> None:
            if index < len(jobs[address]):
                future = self._client.submit(
                    function, *jobs[address][index], workers=[address], allow_other_workers=False, pure=False, retries=0
                )
                running[future] = (address, index)
                future.add_done_callback(ended.put)

        for address in jobs:
            start(address, 0)
        looked = time.monotonic()
        try:
            while running:
                with contextlib.suppress(queue.Empty):
                    future = ended.get(timeout=_POLL_S)
                    if future in running:
                        address, index = running.pop(future)
                        outcome = self._outcome(address, index, future)
                        yield outcome
                        if not outcome.lost:
                            start(address, index + 1)
                if time.monotonic() - looked > _POLL_S:
                    alive = self._alive()
                    for future in [future for future, (address, _) in running.items() if address not in alive]:
                        address, index = running.pop(future)
                        future.cancel()
                        yield self._lost(address, index)
                    looked = time.monotonic()
        finally:
            self._client.cancel(list(running))

    def _alive(self) -> set[str]:
        """The workers that the scheduler still has; none where it is lost itself."""
        if self._client.status != "running":
            return set()
        try:
            return set(self._client.nthreads())
        except (OSError, TimeoutError):
            return set()

    def _outcome(self, address: str, index: int, future: Any) -> Outcome:
        if future.status == "finished":
            return Outcome(address, index, future.result())
        if future.status != "error":  # cancelled or lost, as a scheduler leaves them that is lost itself
            return self._lost(address, index)
        error = future.exception()
        if type(error).__name__ == "KilledWorker":
            return self._lost(address, index)
        said = on_a_line(error)
        return Outcome(address, index, error=said or type(error).__name__)

    def _lost(self, address: str, index: int) -> Outcome:
        what = "the worker" if self._client.status == "running" else f"the scheduler {self.url}"
        return Outcome(address, index, error=f"{what} was lost", lost=True)


def labels(names: Mapping[str, str], devices: Mapping[str, str]) -> dict[str, str]:
    """What to call each worker, by address: its name, or its device's where it was given none; never two the same."""
    made: dict[str, str] = {}
    for address, name in names.items():
        wanted = devices.get(address, name) if name == address else name
        number = 1 + sum(label == wanted or label.startswith(f"{wanted} #") for label in made.values())
        made[address] = wanted if number == 1 else f"{wanted} #{number}"
    return made


def _introduce() -> dict[str, str]:
    """What a worker tells of itself; runs there."""
    from distributed import get_worker

    return {"name": str(get_worker().name), "vkconv": version("vkconv")}


def _problem(outcome: Outcome) -> str:
    if not outcome.ok:
        return outcome.error if outcome.lost else f"vkconv does not run there: {outcome.error}"
    there = outcome.value["vkconv"]
    here = version("vkconv")
    return "" if there == here else f"it has vkconv {there}, here is {here}"
