"""Lists of calls to measure: texts, lines of other tools, tables of convolution shapes, and the suites that ship.

A suite file (``.txt``) has a call or a line of another tool (`vkconv.bench.lines`) on each line, after ``3x`` where it
counts three times; ``#`` begins a comment line. A table (``.csv``) has the columns n, c, h, w, k, kh and kw, those of
`CSV_DEFAULTS` where it needs others than these, and any that are ignored.
"""

import csv
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from vkconv.bench.lines import KINDS, is_line, line_calls
from vkconv.bench.miopen import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, Conv
from vkconv.call import Call
from vkconv.core import DType, GraphError, Shape, UsageError, VkconvError, did_you_mean, not_a_file, shape_str
from vkconv.device import Device
from vkconv.graph import Graph
from vkconv.ops import OPS
from vkconv.ops.core.calls import format_call, in_dtype, parse_call
from vkconv.plan.planner import Options, plan

SUITES = Path(__file__).parent / "suites"
CSV_COLUMNS = (
    *("n", "c", "h", "w", "k", "kh", "kw", "stride_h", "stride_w", "pad_t", "pad_l", "pad_b", "pad_r"),
    *("dil_h", "dil_w", "groups", "oh", "ow"),
)
_CSV_NEEDED = CSV_COLUMNS[:7]
CSV_DEFAULTS: Mapping[str, int] = {
    **dict.fromkeys(("stride_h", "stride_w", "dil_h", "dil_w", "groups", "repeat"), 1),
    **dict.fromkeys(("pad_t", "pad_l", "pad_b", "pad_r"), 0),
}
_CSV_CHECKED = ("oh", "ow")  # held against what the others make, where they are there
_DIRECTIONS: Mapping[str, int] = {"fwd": FORWARD, "bwd_d": BACKWARD_DATA, "bwd_w": BACKWARD_WEIGHT}
_CALL = re.compile(r"[a-z]\w*:(?!:)")
_COUNT = re.compile(r"([1-9]\d{0,5})x\s+(.*)")
_MAX_FILE_BYTES = 16 << 20
_PROBLEMS_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Entry:
    """A call to measure, how often it counts, a note for its rows and the ``nodes`` of models that make it; without a
    call, ``why`` says why not."""

    text: str
    call: Call | None
    count: int = 1
    note: str = ""
    why: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def op(self) -> str:
        return self.text.partition(":")[0]


def shipped_suites() -> list[str]:
    """Names of the suites that come with vkconv."""
    return sorted(path.stem for path in SUITES.glob("*.txt"))


def suite_title(name: str) -> str:
    """What a shipped suite says of itself: the first sentence of its comment."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), (SUITES / f"{name}.txt").read_text().splitlines())
    return " ".join(line.lstrip("# ") for line in lines).partition(". ")[0].removesuffix(".")


def is_call(text: str) -> bool:
    """True for a text that begins as a call string does."""
    return _CALL.match(text) is not None


def parse_entries(text: str, dtype: DType | None = None, *, must_exist: bool = False) -> list[Entry]:
    """The entries of one call string or line of another tool; ``dtype`` replaces the one it has.

    Raises UsageError or GraphError for a text that makes no sense. An op that does not exist gives an entry that
    says so, or with ``must_exist`` a UsageError where a call string names it.
    """
    if is_line(text):
        return [_entry(call, dtype, note=note) for call, note in line_calls(text)]
    if not is_call(text):
        raise UsageError(f"{text!r} is no call (OP:KEY=VALUE,...) and no line of {KINDS}")
    if must_exist:
        parse_call(text, OPS)
    return [_entry(text, dtype)]


def entries_in(text: str, dtype: DType | None) -> list[Entry]:
    """The same for one of many: a call that is none in this type is an entry that says so.

    Raises what `parse_entries` does for a text that makes no sense as it is written."""
    try:
        return parse_entries(text, dtype)
    except GraphError as error:
        if dtype is None:
            raise
        parse_entries(text)
        typed = in_dtype(text, dtype)
        return [Entry(typed, None, why=f"it cannot be in {dtype}: {str(error).removeprefix(f'{typed}: ')}")]


def model_entries(
    graph: Graph,
    device: Device,
    shapes: Mapping[str, Shape],
    options: Options | None = None,
    dtype: DType | None = None,
) -> list[Entry]:
    """The distinct calls of a model as it is planned for a device, each with how many nodes make it; ``dtype`` replaces
    the one that they have."""
    nodes = plan(graph, device, options, shapes).plan.nodes
    entries = merge(Entry(node.text, node.call, nodes=(node.name,)) for node in nodes if node.choice)
    if dtype is None:
        return entries
    return merge(
        dataclasses.replace(typed, count=entry.count, nodes=entry.nodes)
        for entry in entries
        for typed in entries_in(entry.text, dtype)
    )


def read_suite(name: str, dtype: DType | None = None) -> list[Entry]:
    """The entries of a shipped suite, or of a ``.txt`` or ``.csv`` file; equal calls are one entry that counts more.

    Raises UsageError for a suite that does not exist, or naming the file and line of what is wrong in it.
    """
    path = SUITES / f"{name}.txt" if name in shipped_suites() else Path(name)
    if path.suffix not in (".txt", ".csv"):
        known = shipped_suites()
        raise UsageError(
            f"there is no suite {name!r}{did_you_mean(name, known)}; vkconv ships {', '.join(known)}, "
            "and takes .txt and .csv files"
        )
    if problem := not_a_file(path):
        raise UsageError(f"suite {path} cannot be read: {problem}")
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError(f"{path} has {path.stat().st_size} bytes; a suite has at most {_MAX_FILE_BYTES}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"suite {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"suite {path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    read = _read_table if path.suffix == ".csv" else _read_lines
    entries: list[Entry] = []
    problems: list[str] = []
    for number, made in read(path, numbered, dtype):
        if isinstance(made, VkconvError):
            problems.append(f"{path}:{number}: {made}")
        else:
            entries += made
    if problems:
        more = [f"and {len(problems) - _PROBLEMS_SHOWN} more"] if len(problems) > _PROBLEMS_SHOWN else []
        raise UsageError("\n  ".join(["the suite was not run:", *problems[:_PROBLEMS_SHOWN], *more]))
    if not entries:
        raise UsageError(f"suite {path} has no calls")
    return merge(entries)


def merge(entries: Iterable[Entry]) -> list[Entry]:
    """Equal calls as one entry whose count is their sum, in the order they first came."""
    merged: dict[str, Entry] = {}
    for entry in entries:
        known = merged.get(entry.text)
        if known:
            entry = dataclasses.replace(known, count=known.count + entry.count, nodes=known.nodes + entry.nodes)
        merged[entry.text] = entry
    return list(merged.values())


def merge_alike(entries: Iterable[Entry]) -> list[Entry]:
    """The same with calls of models that differ in numbers alone, such as a factor or an epsilon, on which no time
    hangs: the first one stands for all, and its note says for how many. Calls that were given as such stay."""
    merged: dict[object, Entry] = {}
    texts: dict[object, int] = {}
    for entry in entries:
        key = _without_numbers(entry) if entry.nodes else entry.text
        known = merged.get(key)
        if known:
            texts[key] = texts.get(key, 1) + 1
            entry = dataclasses.replace(
                known,
                count=known.count + entry.count,
                nodes=known.nodes + entry.nodes,
                note=f"stands for {texts[key]} calls that differ in numbers alone",
            )
        merged[key] = entry
    return list(merged.values())


def _without_numbers(entry: Entry) -> object:
    """What of a call a time may hang on: all but the values of attributes that are floats."""
    floats = {attr.key for attr in OPS[entry.op].attrs if attr.type is float} if entry.op in OPS else set()
    fields = entry.text.partition(":")[2].split(",")
    return entry.op, tuple(key if (key := text.partition("=")[0]) in floats else text for text in fields)


Made = tuple[int, list[Entry] | VkconvError]


def _read_lines(path: Path, lines: Iterable[tuple[int, str]], dtype: DType | None) -> Iterator[Made]:
    for number, line in lines:
        counted = _COUNT.fullmatch(line.strip())
        count, text = (int(counted[1]), counted[2]) if counted else (1, line.strip())
        try:
            yield number, [dataclasses.replace(e, count=count) for e in entries_in(text, dtype)]
        except VkconvError as error:
            yield number, error


def _read_table(path: Path, lines: list[tuple[int, str]], dtype: DType | None) -> Iterator[Made]:
    if not lines:
        return
    try:
        header = _cells(lines[0][1])
    except UsageError as error:
        yield lines[0][0], error
        return
    missing = [name for name in _CSV_NEEDED if name not in header]
    if missing:
        needed = ", ".join(_CSV_NEEDED)
        yield lines[0][0], UsageError(f"the column {', '.join(missing)} is missing; the table needs {needed}")
        return
    for number, line in lines[1:]:
        try:
            cells = _cells(line)
            if len(cells) != len(header):
                raise UsageError(f"{len(cells)} cells, not {len(header)}")
            yield number, _table_entries(dict(zip(header, cells, strict=True)), dtype)
        except VkconvError as error:
            yield number, error


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise UsageError(f"no line of a table: {error}") from None


def _table_entries(cells: Mapping[str, str], dtype: DType | None) -> list[Entry]:
    v: dict[str, int] = {}
    for name in (*_CSV_NEEDED, *CSV_DEFAULTS, *(name for name in _CSV_CHECKED if name in cells)):
        text = cells.get(name, str(CSV_DEFAULTS.get(name, ""))).strip()
        if not re.fullmatch(r"-?\d{1,9}", text):
            raise UsageError(f"{name} is {text!r}, no whole number")
        v[name] = int(text)
    words = cells.get("direction", "fwd").split("|")
    unknown = [word for word in words if word not in _DIRECTIONS]
    if unknown or v["repeat"] < 1:
        raise UsageError(
            f"direction {unknown[0]!r} is none of {', '.join(_DIRECTIONS)}{did_you_mean(unknown[0], _DIRECTIONS)}"
            if unknown
            else f"repeat is {v['repeat']}; it is at least 1"
        )
    conv = Conv(
        n=v["n"],
        c_in=v["c"],
        h=v["h"],
        w=v["w"],
        c_out=v["k"],
        kernel=(v["kh"], v["kw"]),
        stride=(v["stride_h"], v["stride_w"]),
        padding=(v["pad_t"], v["pad_l"], v["pad_b"], v["pad_r"]),
        dilation=(v["dil_h"], v["dil_w"]),
        groups=v["groups"],
        dtype=dtype or DType.F32,
    )
    problem = conv.problem()
    if problem:
        raise UsageError(problem)
    said = tuple(v.get(name, made) for name, made in zip(_CSV_CHECKED, conv.out, strict=True))
    if conv.out != said:
        raise UsageError(f"the output of these numbers is {shape_str(conv.out)}, the table says {shape_str(said)}")
    calls = conv.calls(sum(_DIRECTIONS[word] for word in dict.fromkeys(words)))
    if min(conv.padding) < 0:
        why = f"the padding {'x'.join(map(str, conv.padding))} is negative: vkconv has no call that crops"
        return [Entry(call, None, v["repeat"], why=why) for call in calls]
    return [dataclasses.replace(_entry(call), count=v["repeat"]) for call in calls]


def _entry(text: str, dtype: DType | None = None, note: str = "") -> Entry:
    if dtype:
        text = in_dtype(text, dtype)
    name = text.partition(":")[0]
    if name not in OPS:
        return Entry(text, None, note=note, why=f"there is no op {name!r} yet")
    call = parse_call(text, OPS)
    return Entry(format_call(call, OPS), call, note=note)
