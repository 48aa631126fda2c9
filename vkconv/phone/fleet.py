"""Several machines at once, each at its own pace; the loss of one leaves the others."""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vkconv.core import VkconvError
from vkconv.phone.board import Board, open_board
from vkconv.phone.results import Result
from vkconv.phone.transport import Transport

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Played:
    """What one machine told: the header of its player, a result with its place, or why there are no more of them."""

    name: str
    place: int = -1
    result: Result | None = None
    error: str = ""


def open_all(transports: Sequence[Transport], selector: str) -> tuple[dict[str, Board], dict[str, str]]:
    """The machines that can be used, by name, and why others cannot."""

    def attempt(transport: Transport) -> Board | VkconvError:
        try:
            return open_board(transport, selector)
        except VkconvError as error:
            return error

    with ThreadPoolExecutor(max(1, len(transports))) as pool:
        found = dict(zip((t.name for t in transports), pool.map(attempt, transports), strict=True))
    boards = {name: board for name, board in found.items() if isinstance(board, Board)}
    return boards, {name: str(error) for name, error in found.items() if isinstance(error, VkconvError)}


def play_all(
    boards: Mapping[str, Board],
    folders: Mapping[str, Path],
    words: Sequence[str],
    fetch: Path | None = None,
    keep: bool = False,
) -> Iterator[Played]:
    """Play a folder on each machine; what they tell, as it comes. Outputs that they keep are fetched into a folder for
    each; ``keep`` leaves there what was pushed."""
    told: queue.Queue[Played | None] = queue.Queue()

    def play(name: str) -> None:
        place = -1
        try:
            into = None if fetch is None else fetch / name.replace("/", "_")
            for result in boards[name].play(folders[name], words, into=into, keep=keep):
                told.put(Played(name, place, result))
                place += 1
        except VkconvError as error:
            told.put(Played(name, error=str(error)))
        except Exception as error:  # of one machine: the others go on
            told.put(Played(name, error=f"{type(error).__name__}: {error}"))
        finally:
            told.put(None)

    threads = [threading.Thread(target=play, args=(name,), daemon=True) for name in folders]
    for thread in threads:
        thread.start()
    left = len(threads)
    while left:
        try:
            what = told.get(timeout=1.0)  # so that Ctrl-C is heard meanwhile
        except queue.Empty:
            continue
        if what is None:
            left -= 1
        else:
            yield what


def each(boards: Mapping[str, Board], make: Callable[[Board], _T]) -> dict[str, _T]:
    """What is made for each machine, one after the other: planning takes this machine's cores."""
    return {name: make(board) for name, board in boards.items()}
