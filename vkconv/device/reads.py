"""What rules read of a device while somebody watches them: facts of Vulkan, numbers of its target, rows of policies.

Each is asked for through `seen`. Who explains a choice watches it (`watching`), and may have some of what is read taken
from another device. What is kept of a device from before is not read again: watch a `Device` of its own.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

Kind = (
    Literal["number", "class", "policy", "limit", "property", "feature", "extension", "format"]
    | Literal["cooperativeMatrices", "quirks"]
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What was read: its kind, its name, and how it is had of a device, by these words."""

    kind: Kind
    name: str
    get: Callable[..., Any]
    words: tuple[str, ...]

    def of(self, device: object) -> Any:
        """The same of a device, whether its rules read it or not."""
        with unwatched():
            return self.get(device, *self.words)


Swap = Callable[[Kind, str], bool]


@dataclasses.dataclass(slots=True)
class Watch:
    """What was read so far by name; what ``swap`` says of it is taken from ``other``."""

    other: object = None
    swap: Swap = lambda kind, name: False
    found: dict[str, Seen] = dataclasses.field(default_factory=dict)
    kept: dict[tuple[str, ...], Any] = dataclasses.field(default_factory=dict)

    def take(self, kind: Kind, get: Callable[..., T], owner: object, words: tuple[str, ...]) -> T:
        """What was asked for, read once."""
        key = kind, *words
        if key not in self.kept:
            name = words[-1] if words else kind
            with unwatched():
                self.kept[key] = get(self.other if self.swap(kind, name) else owner, *words)
            self.found[name] = Seen(kind, name, get, words)
        return self.kept[key]  # type: ignore[no-any-return]


_watch: contextvars.ContextVar[Watch | None] = contextvars.ContextVar("watch", default=None)
# The watch of now, None where nobody watches: what costs nothing to ask, for what is read most.
watch_now = _watch.get


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """Have a watch told of all that is read meanwhile."""
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """What is read meanwhile decides nothing, such as the driver's id that a device is recognised by."""
    token = _watch.set(None)
    try:
        yield
    finally:
        _watch.reset(token)


def seen(kind: Kind, get: Callable[..., T], owner: object, *words: str) -> T:
    """``get(owner, *words)``, of the device that rules plan for, unless who watches takes it from another one. The last
    of the words is its name, without any its kind is."""
    watch = _watch.get()
    return get(owner, *words) if watch is None else watch.take(kind, get, owner, words)
