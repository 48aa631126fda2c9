"""Tables of results: one value that prints as text, Markdown, CSV, HTML or through rich, always the same way."""

import csv
import dataclasses
import html
import io
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from vkconv.core import UsageError, printable
from vkconv.fitted import fitted, wrapped
from vkconv.pages import Sheet, SheetRow, render

if TYPE_CHECKING:
    import pandas
    from rich.table import Table as RichTable

Align = Literal["left", "right"]
Standing = Literal["", "failed", "unmeasured", "best"]

_EXPONENT_BELOW = -4
_EXPONENT_ABOVE = 15


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A column: name, unit for its heading, significant digits of its floats, and alignment (None: numbers to
    the right, all else to the left)."""

    name: str
    unit: str = ""
    digits: int = 4
    align: Align | None = None

    @property
    def heading(self) -> str:
        """``time [us]``, or the bare name where there is no unit."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, columns, and rows of as many cells. Cells keep their values; only printing rounds them.

    ``standings`` say of each row how a page shows it. Raises ValueError when a row has another number of cells than
    there are columns, or there are not as many standings as rows.
    """

    title: str
    columns: Sequence[Column]
    cells: Sequence[Sequence[object]]
    standings: Sequence[Standing] = ()

    def __post_init__(self) -> None:
        if self.standings and len(self.standings) != len(self.cells):
            raise ValueError(f"{len(self.standings)} standings of {self.title!r} for {len(self.cells)} rows")
        for number, row in enumerate(self.cells):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} of {self.title!r} has {len(row)} cells, not {len(self.columns)}: {row}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts from column name to value, unrounded."""
        names = [c.name for c in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.cells]

    def __str__(self) -> str:
        """Plain text in aligned columns."""
        lines = fitted(self._headings(), self._texts(), self.aligns)
        return "\n".join([*filter(None, [printable(self.title)]), *lines])

    def fit(self, width: int) -> str:
        """Plain text for a terminal of so many columns: wrapped, and laid out in more lines, where it is wider."""
        title = wrapped(printable(self.title), width) if self.title else []
        return "\n".join([*title, *fitted(self._headings(), self._texts(), self.aligns, width)])

    def to_markdown(self) -> str:
        """A pipe table, with the title in bold above it."""
        lines = [self._headings(), *self._texts()]
        marks = ["--:" if align == "right" else "---" for align in self.aligns]
        escaped = [[markdown(text) for text in line] for line in lines]
        rows = [f"| {' | '.join(line)} |" for line in (escaped[0], marks, *escaped[1:])]
        return "\n".join([*([f"**{markdown(self.title)}**", ""] if self.title else []), *rows])

    def to_csv(self) -> str:
        """Comma-separated values at full precision, headings first, no title."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.heading for c in self.columns])
        writer.writerows(self.cells)
        return out.getvalue()

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a data frame, columns by their headings, unrounded. UsageError without pandas."""
        return data_frame(self.cells, [c.heading for c in self.columns])

    def rich(self) -> "RichTable":
        """The table for a rich console."""
        from rich.box import SIMPLE_HEAD  # here: importing rich takes longer than most commands
        from rich.table import Table as RichTable
        from rich.text import Text

        title = Text(printable(self.title)) if self.title else None
        table = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column, align in zip(self.columns, self.aligns, strict=True):
            # A number on two lines is none: where it is too narrow, texts are folded.
            table.add_column(Text(printable(column.heading)), justify=align, overflow="fold", no_wrap=align == "right")
        for row in self._texts():
            table.add_row(*map(Text, row))
        return table

    def __rich__(self) -> "RichTable":
        return self.rich()

    def _repr_html_(self) -> str:
        return render(
            "table.html.j2", title=self.title, headings=self._headings(), aligns=self.aligns, rows=self._texts()
        )

    def sheet(
        self,
        ids: str = "r",
        classes: Callable[[Column], str] = lambda column: "",
        links: Mapping[str, str] = MappingProxyType({}),
        numbered: bool = False,
    ) -> Sheet:
        """The table for a page: row ids are ``ids`` and the row's index, ``classes`` those of a column beside what its
        alignment makes, ``links`` addresses by the text of a row's first cell. With ``numbered``, wrong rows come first
        and each says its place."""
        names = [f"{'n ' * (a == 'right')}{classes(c)}".strip() for c, a in zip(self.columns, self.aligns, strict=True)]
        columns = list(zip(self._headings(), names, strict=True))
        rows = []
        for i, texts in enumerate(self._texts()):
            cells = [(text, "" if j else links.get(text, "")) for j, text in enumerate(texts)]
            place = [(str(i + 1), "")] if numbered else []
            rows.append(SheetRow(f"{ids}{i}", self.every_standing[i], [*place, *cells]))
        if numbered:
            columns = [("#", "n"), *columns]
            rows.sort(key=lambda row: row.standing != "failed")
        return Sheet(columns, rows)

    def _headings(self) -> list[str]:
        return [printable(column.heading) for column in self.columns]

    def _texts(self) -> list[list[str]]:
        return [[format_cell(v, c.digits) for c, v in zip(self.columns, row, strict=True)] for row in self.cells]

    @property
    def every_standing(self) -> Sequence[Standing]:
        """The standing of each row."""
        none: Standing = ""
        return self.standings or [none] * len(self.cells)

    @property
    def aligns(self) -> list[Align]:
        """The alignment of each column, natural ones decided."""
        return [column.align or _natural_align([row[i] for row in self.cells]) for i, column in enumerate(self.columns)]


def data_frame(rows: Sequence[Sequence[object]], columns: Sequence[str]) -> "pandas.DataFrame":
    """Rows as a pandas data frame; UsageError that says how to install pandas where it is not."""
    try:
        import pandas
    except ImportError:
        raise UsageError("data frames are made by pandas, which is not here: pip install 'vkconv[pandas]'") from None
    return pandas.DataFrame(list(rows), columns=list(columns))


def _natural_align(values: Sequence[object]) -> Align:
    known = [v for v in values if v is not None]
    is_number = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in known)
    return "right" if known and is_number else "left"


def format_cell(value: object, digits: int = 4) -> str:
    """A cell as one line of text: None empty, booleans yes or no, floats by `format_number`, others by str()."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return format_number(float(value), digits)
    return printable(" ".join(str(value).split("\n")))


_MARKS = re.compile(r"[\\|]|\](?=[(\[:])")


def markdown(text: str) -> str:
    """A text as Markdown shows it; it makes no HTML, link, picture or cell."""
    return _MARKS.sub(r"\\\g<0>", html.escape(printable(text), quote=False))


def format_number(value: float, digits: int = 4) -> str:
    """A float at ``digits`` significant digits, never fewer before the point: ``0.01235``, ``12.35``, ``123457``.

    Exponents only where the plain form would hide digits or pad zeros: below 1e-4 and from 1e15 on.
    """
    if not math.isfinite(value) or value == 0:
        return f"{abs(value) if value == 0 else value:g}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 9.9996 counts as 10.00
    if not _EXPONENT_BELOW <= exponent < _EXPONENT_ABOVE:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"
