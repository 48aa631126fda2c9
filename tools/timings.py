"""The results in bench/results/timings: what each table is, its rows, and of each call the class and the newest row.

sources.toml says what a table is. A call that several tables have counts by the last of them. Tables that a newer one
has taken the place of, and layers that newer kernels were timed by since, are not *current*: a call that only they have
is *earlier*.
"""

import csv
import datetime
import functools
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from vkconv.call import Call
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, parse_call

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "timings"
# Of calls beside a peer, as the document has them; the others are no such tables.
CALLS, LISTS, CPU = ("f32", "16-bit", "reductions"), "lists", "cpu"
Group = Literal["f32", "16-bit", "reductions", "lists", "cpu", "networks", "profiles", "regret"]
CLASSES = (
    "1x1",
    "k x k",
    "5x5",
    "stems",
    "depthwise",
    "groups",
    "data gradients",
    "weight gradients",
    "products",
    "reductions",
)
_OF_OPS = {
    "conv2d_backward_data": "data gradients",
    "conv2d_backward_weight": "weight gradients",
    "matmul": "products",
    "reduce": "reductions",
    "softmax": "reductions",
    "layer_norm": "reductions",
    "gemm_reduce": "reductions",
    "conv_reduce": "reductions",
}
_STEM_CHANNELS = 4
# Calls of the tables that were kept in words: op, first dimension, and of a convolution its kernel.
_WORDS = re.compile(
    r"(?P<op>conv2d|matmul|backward-data|backward-weight) \D*(?P<first>\d+)?.*?(?:x(?P<k>\d+x\d+))?(?:,|$)"
)


class Since(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The route that is taken of a call since it was timed, and what that took, if it was timed too."""

    route: str
    us: str = ""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table is; sources.toml says what the fields mean."""

    title: str
    group: Group
    command: str
    date: datetime.date
    device: str = ""
    beside: str = ""
    label: str = ""
    list: str = ""
    held_out: str = ""
    drawn_from: int = 0
    dtype: str = ""
    commit: str = ""
    superseded_by: str = ""
    later: str = ""
    since: dict[str, Since] = msgspec.field(default_factory=dict)

    @property
    def on(self) -> str:
        """The device without its vendor and version."""
        return self.device.removeprefix("NVIDIA ").split(",")[0]

    @property
    def current(self) -> bool:
        """No later table has its calls or such calls."""
        return not (self.superseded_by or self.later)

    @property
    def tool(self) -> str:
        """The script of the command."""
        return next(word for word in self.command.split() if word.startswith("tools/")).removeprefix("tools/")


class Kind(NamedTuple):
    """What a call is for the tables of classes."""

    what: str
    halves: bool
    images: int


class Row(NamedTuple):
    """A call that was timed beside a peer."""

    table: str
    call: str
    route: str
    us: str
    peer_us: str

    @property
    def ratio(self) -> float:
        """What the peer takes over what vkconv takes."""
        return float(self.peer_us) / float(self.us)

    def by(self, since: Since | None) -> "Row":
        """The row by the route that is taken since."""
        if since is None:
            return self
        route = f"{since.route} (now)" if since.us else f"{self.route} (now {since.route}, not timed)"
        return self._replace(route=route, us=since.us or self.us)


def read(name: str) -> list[dict[str, str]]:
    """The rows of a table as they are on file."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def sources() -> Mapping[str, Source]:
    """What each table is, by its name."""
    return msgspec.toml.decode((RESULTS / "sources.toml").read_bytes(), type=dict[str, Source])


def named(*groups: str) -> dict[str, Source]:
    """The tables of some groups, group by group."""
    found = sources()
    return {name: source for group in groups for name, source in found.items() if source.group == group}


def rows(name: str) -> list[Row]:
    """The rows of a table, least ratio first; without those that the peer lacks."""
    found = [Row(name, row["call"], row["route"], row["us"], row["peer_us"]) for row in read(name) if row["peer_us"]]
    return sorted(found, key=lambda row: row.ratio)


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


@functools.cache
def _parsed(call: str) -> Call | None:
    """A call string as a call; none of what is in words."""
    return parse_call(call, OPS) if ":" in call else None


def key(call: str, dtype: str = "") -> str:
    """The same for all ways to write a call."""
    parsed = _parsed(call)
    return f"{call}{dtype and ', ' + dtype}" if parsed is None else format_call(parsed, OPS)


def _convolution(call: Call) -> str:
    (_, channels, *_), (_, per_group, *kernel) = call.shape("x"), call.shape("w")
    if call["groups"] > 1:
        return "depthwise" if per_group == 1 else "groups"
    if tuple(kernel) == (1, 1):
        return "1x1"
    if channels <= _STEM_CHANNELS:
        return "stems"
    return "5x5" if tuple(kernel) == (5, 5) else "k x k"


def kind(call: str, dtype: str = "") -> Kind:
    """The class, type and images of a call; of a product its rows."""
    parsed = _parsed(call)
    if parsed is None:
        words = _WORDS.match(call)
        if words is None:
            raise ValueError(f"no call and no words of one: {call!r}")
        op = words["op"].replace("backward", "conv2d_backward").replace("-", "_")
        what = _OF_OPS.get(op) or ("1x1" if words["k"] == "1x1" else "k x k")
        halves = dtype == "f16" or call.endswith(("f16", "bf16"))
        return Kind(what, halves, int(words["first"] or 0))
    what = _OF_OPS.get(parsed.op) or _convolution(parsed)
    first = next(spec for spec in parsed.operands.values() if spec is not None)
    return Kind(what, parsed.half is not None, first.dims[0])


class Timed(NamedTuple):
    """The newest row of a call."""

    row: Row
    kind: Kind
    current: bool


def newest() -> list[Timed]:
    """The newest row of each call that was timed on a GPU beside a peer, least ratio first."""
    found, of = dict[str, Row](), sources()
    for name, source in of.items():
        if source.group in (*CALLS, LISTS):
            found |= {key(row.call, source.dtype): row.by(source.since.get(row.call)) for row in rows(name)}
    timed = (Timed(row, kind(row.call, of[row.table].dtype), of[row.table].current) for row in found.values())
    return sorted(timed, key=lambda one: one.row.ratio)


def groups(timed: Sequence[Timed]) -> Iterator[tuple[str, bool, list[Timed]]]:
    """The rows of each class and type that has any."""
    for what, halves in itertools.product(CLASSES, (False, True)):
        found = [one for one in timed if one.kind[:2] == (what, halves)]
        if found:
            yield what, halves, found
