"""``vkconv devices``: what is there, and the facts of one device as a file for bug reports and planning elsewhere."""

from typing import Annotated

import typer

from vkconv.cli.output import show, show_json
from vkconv.core import bytes_str
from vkconv.table import Column, Table


def devices(
    device: Annotated[
        str,
        # No environment variable here: listing everything must stay possible.
        typer.Option("--device", "-d", metavar="SEL", help="Tell about one device: an index, part of a name, or auto."),
    ] = "",
    dump: Annotated[
        bool,
        typer.Option(
            "--dump", help="Print all facts of one device (--device, default the best) as a JSON device file."
        ),
    ] = False,
) -> None:
    """List the Vulkan devices of this machine, or tell about one of them.

    Exit code 3 when there is none.
    """
    from vkconv.backend.runtime import list_devices, select_device
    from vkconv.device.facts import SCHEMA

    best, chosen = select_device(device or "auto")
    if dump:
        show_json({"schema": SCHEMA, **chosen.facts})
        return
    if device:
        show(Table("", (Column("fact"), Column("value")), chosen.describe()))
        return
    rows = [
        (
            index,
            d.name,
            d.kind,
            d.vendor,
            d.driver,
            d.api_version,
            bytes_str(d.heap_bytes),
            "auto" if index == best else "",
        )
        for index, d in enumerate(list_devices())
    ]
    names = ("index", "name", "kind", "vendor", "driver", "vulkan", "memory", "")
    show(Table("", [Column(name) for name in names], rows))
