"""``vkconv compilers``: the GPUs whose compilers run without them, and setting these up."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vkconv.cli.options import JsonOption
from vkconv.cli.output import refuse_before, say, show, show_json
from vkconv.core import UsageError, did_you_mean
from vkconv.table import Column, Table

if TYPE_CHECKING:
    from vkconv.compilers.install import Offer

compilers_app = typer.Typer()


@compilers_app.callback(invoke_without_command=True)
def compilers(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the GPUs whose compilers can run here without them, which are installed, and their versions."""
    if (command := context.invoked_subcommand) is not None:
        refuse_before(f"vkconv compilers {command}", {"--json": as_json})
        return
    from vkconv.compilers.gpus import data
    from vkconv.compilers.installed import compilers_dir, installed

    known = data()
    sets = {name: installed(name) for name in known.sets}
    rows = []
    for gpu in known.gpus:
        driver = known.drivers[gpu.driver]
        there = sets[driver.set]
        rows.append(
            {
                "gpu": gpu.name,
                "also": " ".join(gpu.aliases),
                "what": gpu.title,
                "driver": driver.title,
                "set": driver.set,
                "installed": f"Mesa {there.version}" if there else "",
                "planned_with": gpu.device or "live",
                "occupancy": driver.occupancy,
                "traps": [*gpu.traps, *driver.traps],
            }
        )
    if as_json:
        found = {
            name: None
            if there is None
            else {"folder": str(there.folder), "version": there.version, "differences": there.differences}
            for name, there in sets.items()
        }
        show_json({"schema": "vkconv.compilers/1", "folder": str(compilers_dir()), "sets": found, "gpus": rows})
        return
    names = ("gpu", "also", "what", "driver", "set", "installed", "planned_with")
    lines = [
        f"the set {name} is not installed: vkconv compilers install {name}" for name, there in sets.items() if not there
    ]
    lines += [
        f"the set {name} is NOT as it was tried: {text}"
        for name, there in sets.items()
        if there
        for text in there.differences
    ]
    table = Table(
        "", [Column(name.replace("_", " ")) for name in names], [[row[name] for name in names] for row in rows]
    )
    show(table, *lines, f"in {compilers_dir()}; traps of each driver: vkconv compilers --json, docs/compilers.md")


@compilers_app.command("install")
def install(
    name: Annotated[str, typer.Argument(metavar="[SET]", help="The set of drivers: amd64, arm64.")] = "amd64",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Download without asking.")] = False,
    any_version: Annotated[
        bool, typer.Option("--any-version", help="Take other versions of the packages than those that were tried.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Install it in place of the one that is there.")] = False,
) -> None:
    """Download drivers and their shims as Debian's packages, and unpack them into the user's cache.

    Nothing is installed in the system, no root is needed; they come from where this machine's apt takes Debian's.
    """
    from vkconv.compilers.gpus import data
    from vkconv.compilers.install import install as set_up
    from vkconv.compilers.installed import installed

    sets = data().sets
    if name not in sets:
        raise UsageError(f"there is no set {name!r}{did_you_mean(name, sets)}; {', '.join(sets)}")
    there = installed(name)
    if there and not again:
        there.program()
        show(f"{name} is installed in {there.folder}: Mesa {there.version}; --again installs it anew")
        return

    def agreed(offer: "Offer") -> bool:
        for text in offer.differences:
            say(f"not as tried: {text}")
        if yes:
            return True
        question = f"Download {len(offer.packages) + len(offer.tools)} packages, {offer.nbytes / 1e6:.0f} MB?"
        if not sys.stdin.isatty():
            raise UsageError(f"{question} There is nobody to ask: --yes says so")
        return typer.confirm(question)

    made = set_up(name, agreed, say, any_version)
    if made is None:
        show("nothing was downloaded")
        raise typer.Exit(1)
    gpus = [gpu.name for gpu in data().gpus if data().drivers[gpu.driver].set == name]
    show(f"installed {name} in {made.folder}: Mesa {made.version}, {len(gpus)} GPUs: {', '.join(gpus)}")
