"""Pages of results: one look for all of them, made by Jinja2, which escapes whatever a template is given.

Nothing else in vkconv writes HTML or SVG. A page is one file that asks for nothing: style and script are in it.
"""

import base64
import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkconv.core import printable
from vkconv.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FOLDER = Path(__file__).parent
_BREAKS = re.compile("(?<=[,:_])(?=.)")


@dataclasses.dataclass(frozen=True)
class SheetRow:
    """A row of a sheet: an id that links lead to, its standing as a class ('', failed, unmeasured, best), its cells as
    texts, each with the address that it links to or ''."""

    id: str
    standing: str
    cells: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table that is sorted and filtered on its page: a heading and classes for each column (n: a number, k: bold in
    the best row, s: a measure of speed, which a wrong row has none of), and rows."""

    columns: Sequence[tuple[str, str]]
    rows: Sequence[SheetRow]


@dataclasses.dataclass(frozen=True)
class Section:
    """A titled part of a page: a line that explains it, what `render` made, and a sheet."""

    title: str
    help: str = ""
    content: str = ""
    sheet: Sheet | None = None

    @property
    def id(self) -> str:
        """What an address ends with that leads to it."""
        return "-".join(re.findall(r"\w+", self.title.lower()))


@dataclasses.dataclass(frozen=True)
class Page:
    """What a page says. ``notices`` are lines on top, True where they tell of something wrong; ``facts`` the conditions
    by name; ``commands`` what repeats a failure; ``schema`` that of the same result as JSON."""

    title: str
    heading: str
    notices: Sequence[tuple[str, bool]] = ()
    facts: Sequence[tuple[str, str]] = ()
    lines: Sequence[str] = ()
    commands: Sequence[str] = ()
    sections: Sequence[Section] = ()
    schema: str = ""


@dataclasses.dataclass(frozen=True)
class LogAxis:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``, logarithmically."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Powers of ten inside, with 2 and 5 times them where there are few."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        values = (step * 10.0**power for power in powers for step in steps)
        return [v for v in values if self.low <= v <= self.high]


def render(template: str, **values: Any) -> str:
    """What a template of this folder makes of values. Texts are escaped, but for what `render` itself returned; what is
    not to be seen is told as ``\\x1b``."""
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(**values))


def whole(page: Page) -> str:
    """The file of a page: no request to anywhere, and no script but its own, by content security policy."""
    from markupsafe import Markup

    style, script = (Markup((_FOLDER / name).read_text(encoding="utf-8")) for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return str(render("page.html.j2", page=page, style=style, script=script, digest=digest, version=VERSION))


def breakable(text: str) -> "Markup":
    """A text that may break after a comma, a colon or an underscore."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(_shown(part)) for part in _BREAKS.split(text))


@functools.cache
def _environment() -> "Environment":
    # Here: importing Jinja2 takes longer than commands that make no page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment


def _shown(value: Any) -> Any:
    """A text without what is not to be seen; lines stay apart, and what is HTML by itself stays as it is."""
    return printable(value, keep="\n") if isinstance(value, str) and not hasattr(value, "__html__") else value
