"""Tables on terminals that are narrower than they are: no cell is cut, no word broken that fits a line.

Texts are wrapped first. A column that would become a tower leaves the row and stands below it, under its heading; a
first column that would take half of the line stands above its row.
"""

import re
from collections.abc import Sequence

_GAP = 2
_MOST_LINES = 3  # of a cell
_LONGEST_WORD = 28  # that is never broken
_DETAIL = " " * 4


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[str], width: int | None = None
) -> list[str]:
    """The lines of a table: a row on each, or where they would be longer than ``width``, on several."""
    columns = list(range(len(headings)))
    natural = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if width is None or sum(natural) + _GAP * (len(columns) - 1) <= width:
        return _lines(headings, rows, aligns, columns, natural)
    lead = int(natural[0] > width // 2 and len(columns) > 1)
    inside, below = columns[lead:], list[int]()
    while True:
        widths = _shrunk(headings, rows, aligns, inside, width - _GAP * lead)
        tall = [
            i for i, w in zip(inside, widths, strict=True) if any(len(wrapped(row[i], w)) > _MOST_LINES for row in rows)
        ]
        fits = sum(widths) + _GAP * (len(inside) - 1 + lead) <= width
        asked = [i for i in (tall if fits else inside[1 - lead :]) if i != 0]
        movable = [i for i in asked if aligns[i] == "left"] or ([] if fits else asked)
        if (fits and not tall) or not movable or len(inside) == 1:
            return _lines(headings, rows, aligns, inside, widths, below, lead, width)
        gone = max(movable, key=lambda i: natural[i])
        inside.remove(gone)
        below = sorted([*below, gone])


def _shrunk(
    headings: Sequence[str], rows: Sequence[Sequence[str]], aligns: Sequence[str], columns: Sequence[int], width: int
) -> list[int]:
    """Widths of columns, the widest made narrower until all fit; numbers and words stay whole."""
    widths, least = [], []
    for i in columns:
        texts = [row[i] for row in rows]
        words = [len(word) for text in (headings[i], *(texts if aligns[i] == "left" else ())) for word in text.split()]
        numbers = [len(text) for text in texts] if aligns[i] == "right" else []
        widths.append(max(len(text) for text in (headings[i], *texts)))
        least.append(max(min(max(words, default=0), max(_LONGEST_WORD, len(headings[i]))), *numbers, 0))
    excess = sum(widths) + _GAP * (len(columns) - 1) - width
    while excess > 0 and any(w > m for w, m in zip(widths, least, strict=True)):
        widest = max((w, i) for i, (w, m) in enumerate(zip(widths, least, strict=True)) if w > m)[1]
        widths[widest] -= 1
        excess -= 1
    return widths


_PIECES = re.compile(r"[^|,/]*[|,/]|[^|,/]+")


def wrapped(text: str, width: int, indent: str = "", after: str = "") -> list[str]:
    """A text on lines of so many characters; words that are longer are broken, behind one of ``|,/`` where they can.
    The first line begins with ``indent``, the others with ``after``."""
    lines, line, start = [], "", indent
    for word in text.split():
        gap = " " if line else ""
        for piece in [word] if len(after) + len(word) <= width else _PIECES.findall(word):
            while line and len(start) + len(line) + len(gap) + len(piece) > width:
                lines.append(start + line)
                line, gap, start = "", "", after
            while len(start) + len(piece) > max(width, len(start) + 1):
                room = max(width - len(start), 1)
                lines.append(start + piece[:room])
                piece, start = piece[room:], after
            line, gap = line + gap + piece, ""
    return [*lines, start + line]


def _lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    aligns: Sequence[str],
    inside: Sequence[int],
    widths: Sequence[int],
    below: Sequence[int] = (),
    lead: int = 0,
    width: int = 0,
) -> list[str]:
    indent = " " * (_GAP * lead)

    def row_lines(row: Sequence[str]) -> list[str]:
        cells = [wrapped(row[i], w) for i, w in zip(inside, widths, strict=True)]
        height = max(map(len, cells))
        filled = [cell + [""] * (height - len(cell)) for cell in cells]
        padded = (
            (
                text.rjust(w) if aligns[i] == "right" else text.ljust(w)
                for i, w, text in zip(inside, widths, line, strict=True)
            )
            for line in zip(*filled, strict=True)
        )
        return [(indent + (" " * _GAP).join(texts)).rstrip() for texts in padded]

    lines = [headings[0]] if lead else []
    lines += [*row_lines(headings), indent + (" " * _GAP).join("-" * w for w in widths)]
    last = None
    for row in rows:
        if lead and row[0] != last:
            lines.append(row[0])
            last = row[0]
        lines += row_lines(row)
        for i in below:
            if row[i]:
                lines += wrapped(f"{headings[i]}: {row[i]}", width, _DETAIL, _DETAIL + "  ")
    return lines
