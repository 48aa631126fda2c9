"""``vkconv passes``, and what --no-pass and --pass-dump have to say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkconv.cli.options import JsonOption
from vkconv.cli.output import file_errors, show, show_json
from vkconv.core import Shape, UsageError, expand_user
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.device import Device
    from vkconv.graph import Graph
    from vkconv.plan.planner import Options


def passes(as_json: JsonOption = False) -> None:
    """List the passes that rewrite a model before its routes are chosen, in order.

    --no-pass NAME leaves one out, --pass-dump DIR saves the graph after each.
    """
    from vkconv.plan.passes import PASSES

    if as_json:
        data = [{"pass": entry.name, "required": entry.required, "doc": entry.doc} for entry in PASSES]
        show_json({"schema": "vkconv.passes/1", "passes": data})
        return
    rows = [
        (number, entry.name, "required" if entry.required else "", entry.doc) for number, entry in enumerate(PASSES, 1)
    ]
    show(Table("", [Column("#"), Column("pass"), Column(""), Column("what it does")], rows))


def refuse_for_calls(no_pass: Sequence[str] | None, pass_dump: Path | None) -> None:
    """UsageError for options about passes where there are calls alone."""
    for option, given in (("--no-pass", no_pass), ("--pass-dump", pass_dump)):
        if given:
            raise UsageError(f"{option} is for models; a call runs as it is written")


def save_passes(
    folder: Path | None, graph: "Graph", device: "Device", options: "Options", shapes: Mapping[str, Shape] | None = None
) -> dict[str, str]:
    """Write what --pass-dump asks for, if it is given: what was written, by its path."""
    from vkconv.plan.pass_dump import dump_passes

    if folder is None:
        return {}
    folder = expand_user(folder, "--pass-dump")
    with file_errors(folder):
        files = dump_passes(graph, device, options, folder, shapes)
    return {str(folder): f"the graph as it is written, and after each of {len(files) - 1} passes"}


def passes_lines(options: "Options", written: Mapping[str, str]) -> list[str]:
    """Which passes are left out by name, and what `save_passes` wrote."""
    skipped = [f"passes left out: {', '.join(options.skip_passes)}"] if options.skip_passes else []
    return skipped + [f"wrote {path}: {what}" for path, what in written.items()]
