"""Sets of byte ranges, kept joined: what is taken of a buffer, however many blocks took it."""

from bisect import bisect_left, bisect_right, insort


class Spans:
    """The union of half-open ranges of bytes, as disjoint ones in order that do not touch."""

    __slots__ = ("begins", "ends")

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Join a range, which is not empty, with those that it overlaps or touches."""
        first = bisect_left(self.ends, begin)
        last = bisect_right(self.begins, end)
        if first < last:
            begin, end = min(begin, self.begins[first]), max(end, self.ends[last - 1])
        self.begins[first:last] = [begin]
        self.ends[first:last] = [end]

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether any byte of a range that is not empty is in the set."""
        at = bisect_right(self.ends, begin)
        return at < len(self.begins) and self.begins[at] < end


class ListedSpans:
    """What `TimedSpans` keeps, as a list of all blocks: for few of them nothing is as fast."""

    def __init__(self, steps: int) -> None:
        self._blocks: list[tuple[int, int, int, int]] = []

    def add(self, first: int, last: int, begin: int, end: int) -> None:
        """Take a range of bytes from step ``first`` to step ``last``, both included."""
        insort(self._blocks, (begin, end, first, last))

    def taken(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges that are taken in any step from ``first`` to ``last``, by where they begin; they may overlap."""
        return [(begin, end) for begin, end, since, until in self._blocks if since <= last and first <= until]


class TimedSpans:
    """What is taken of one chunk of memory in each of ``steps`` steps: a segment tree over them, so that a block of a
    thousand steps is kept at some ten places. Planning stays near linear in the number of blocks."""

    def __init__(self, steps: int) -> None:
        self._leaves = 1 << max(0, steps - 1).bit_length()
        # By node of the tree: what is taken in all of its steps, and what in any of them.
        self._all: dict[int, Spans] = {}
        self._any: dict[int, Spans] = {}

    def add(self, first: int, last: int, begin: int, end: int) -> None:
        """Take a range of bytes from step ``first`` to step ``last``, both included."""
        above: set[int] = set()
        for node in self._cover(first, last):
            self._all.setdefault(node, Spans()).add(begin, end)
            while node and node not in above:
                above.add(node)
                node >>= 1
        for node in above:
            self._any.setdefault(node, Spans()).add(begin, end)

    def taken(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges that are taken in any step from ``first`` to ``last``, by where they begin; they may overlap."""
        found: list[Spans] = []
        above: set[int] = set()
        for node in self._cover(first, last):
            if node in self._any:
                found.append(self._any[node])
            node >>= 1
            while node and node not in above:
                above.add(node)
                node >>= 1
        found += [self._all[node] for node in above if node in self._all]
        return sorted(pair for spans in found for pair in zip(spans.begins, spans.ends, strict=True))

    def _cover(self, first: int, last: int) -> list[int]:
        """The fewest nodes of the tree that are exactly these steps."""
        low, high = first + self._leaves, last + self._leaves + 1
        nodes: list[int] = []
        while low < high:
            if low & 1:
                nodes.append(low)
                low += 1
            if high & 1:
                high -= 1
                nodes.append(high)
            low >>= 1
            high >>= 1
        return nodes
