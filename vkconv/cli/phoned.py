"""What the commands of ``vkconv phone`` share: which machines, and folders of packs for them."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vkconv.cli.output import say
from vkconv.core import DeviceError

if TYPE_CHECKING:
    from vkconv.phone.board import Board

ViaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--via", metavar="adb|adb://SERIAL|ssh://USER@HOST", help="How to reach it; repeatable. Default: adb."
    ),
]
SerialOption = Annotated[
    list[str] | None, typer.Option("--serial", "-s", metavar="SERIAL", help="A device of adb; repeatable.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All devices that adb has.")]
VulkanOption = Annotated[
    str, typer.Option("--device", "-d", metavar="SEL", help="The Vulkan device there: a place, or part of a name.")
]
OutputsOption = Annotated[
    list[Path] | None,
    typer.Option("-o", "--output", metavar="FILE", help="Save as .json, .csv, .md, .html or .xml (JUnit); repeat."),
]
RepeatOption = Annotated[
    int, typer.Option("--repeat", min=1, metavar="N", help="Runs of the same commands whose bytes are compared.")
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Leave there what was copied: the next time it needs not be copied again.")
]
EXIT_FAILED = 1


@contextlib.contextmanager
def folders_for(boards: "dict[str, Board]") -> Iterator[dict[str, Any]]:
    """An empty folder of packs for each board, for as long as it is needed."""
    from vkconv.plan.pack import PackFolder

    with tempfile.TemporaryDirectory(prefix="vkconv-") as scratch:
        yield {name: PackFolder(Path(scratch) / str(number)) for number, name in enumerate(boards)}


def open_boards(via: list[str] | None, serials: list[str] | None, everything: bool, device: str) -> "dict[str, Board]":
    """The boards that were asked for. Those that cannot be used are told of; DeviceError where none can."""
    from vkconv.phone.fleet import open_all
    from vkconv.phone.transport import transports

    boards, problems = open_all(transports(via or [], serials or [], everything), device)
    if not boards:
        raise DeviceError("\n".join(problems.values()))
    for problem in problems.values():
        say(problem)
    return boards
