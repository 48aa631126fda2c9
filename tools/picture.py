"""Draw what a command prints on a terminal as an SVG, for the README.

    python tools/picture.py OUT.svg [--columns N] [--head N] [--tail N] -- COMMAND ARG...

Runs the command on a pseudo-terminal, so that colours and layout are what a person sees. Lines between ``--head`` and
``--tail`` are replaced by one that says how many they were.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

# Cursor movement and erasing that progress bars use: what they overwrite is not part of the picture.
_ERASED = re.compile(r"\x1b\[\?25[lh]|\x1b\[[0-9]*[ABCDGJK]")


def captured(command: list[str], columns: int) -> tuple[int, str]:
    """Exit status and everything the command writes to a terminal of this width."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        chunks: list[bytes] = []
        with contextlib.suppress(OSError):  # EIO is how a terminal ends
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
    os.close(ours)
    return process.returncode, b"".join(chunks).decode(errors="replace")


def visible_lines(text: str) -> list[str]:
    """Lines as they stay on the screen: after the last carriage return, without cursor movement or blank runs."""
    lines = [_ERASED.sub("", line.rsplit("\r", 1)[-1]) for line in text.replace("\r\n", "\n").split("\n")]
    return [line for i, line in enumerate(lines) if line.strip() or (i and lines[i - 1].strip())]


def drawn(lines: list[str], columns: int, title: str) -> str:
    """Lines of a terminal as an SVG, the same for the same lines."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line))
    svg = console.export_svg(title=title, unique_id="terminal")
    # Rich links a font from the network; a reader's own monospace font will do.
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--head", type=int, default=40)
    parser.add_argument("--tail", type=int, default=10)
    parser.add_argument("--title", default="")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    status, text = captured(options.command, options.columns)
    if status:
        print(text, file=sys.stderr)
        return status
    lines = visible_lines(text)
    cut = len(lines) - options.head - options.tail
    if cut > 1:
        lines[options.head : options.head + cut] = [f"  ... {cut} more lines ..."]
    options.out.write_text(drawn(lines, options.columns, options.title or " ".join(options.command)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
