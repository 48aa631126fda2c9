"""What is made when somebody asks for it, and once."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, overload

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

_RECENT: dict[tuple[Any, ...], tuple[tuple[object, ...], Any]] = {}
_MOST_RECENT = 4096


def once(key: tuple[Any, ...], of: tuple[object, ...], make: Callable[[], _T]) -> _T:
    """What was made of these objects, kept for the calls that are planned just now: each is asked many times. Objects
    count by identity, and stay with what was made of them, so that no other one gets their ids."""
    full = (*key, *map(id, of))
    found = _RECENT.get(full)
    if found is None:
        if len(_RECENT) >= _MOST_RECENT:
            _RECENT.clear()
        found = _RECENT[full] = of, make()
    return cast(_T, found[1])


class OnDemand(Sequence[_T_co]):
    """Items that are made when they are looked at, each once. To compare or print them makes all."""

    def __init__(self, makers: Sequence[Callable[[], _T_co]]) -> None:
        self._makers = makers
        self._made = dict[int, _T_co]()

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> _T_co: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[_T_co, ...]: ...

    def __getitem__(self, index: int | slice) -> _T_co | tuple[_T_co, ...]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return tuple(self[place] for place in places)
        if places not in self._made:
            self._made[places] = self._makers[places]()
        return self._made[places]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, OnDemand) else NotImplemented

    def __repr__(self) -> str:
        return repr(tuple(self))

    __hash__ = None  # type: ignore[assignment]
