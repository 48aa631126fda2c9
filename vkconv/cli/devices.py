"""``vkconv devices``: what is there, the facts of one device as a file for bug reports and planning elsewhere, the
device files that vkconv ships, and such files made from what other tools write."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from vkconv.cli.evident import all_devices, evident_table, notes
from vkconv.cli.models import find_device
from vkconv.cli.output import file_errors, refuse_before, refuse_to_replace, show, show_json
from vkconv.core import UsageError, bytes_str
from vkconv.device import Device, load_device, shipped_devices
from vkconv.device.facts import SCHEMA, Kind
from vkconv.table import Column, Table

devices_app = typer.Typer()

_Evident = Annotated[
    bool,
    typer.Option(
        "--evidence", help="What the device is, the numbers that rules compute with, and where each is from, instead."
    ),
]


@devices_app.callback(invoke_without_command=True)
def devices(
    context: typer.Context,
    device: Annotated[
        str,
        # No environment variable here: listing everything must stay possible.
        typer.Option(
            "--device",
            "-d",
            metavar="SEL",
            help="Tell about one device: an index, part of a name, auto, a device file or the name of a shipped one.",
        ),
    ] = "",
    dump: Annotated[
        bool,
        typer.Option(
            "--dump", help="Print all facts of one device (--device, default the best) as a JSON device file."
        ),
    ] = False,
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="GPU",
            help="Tell about a GPU that is not here, as its driver shows it behind a shim: see vkconv compilers.",
        ),
    ] = "",
    evidence: _Evident = False,
) -> None:
    """List the Vulkan devices of this machine, or tell about one of them, or of one that is not here.

    Exit code 3 when there is none.
    """
    if (command := context.invoked_subcommand) is not None:
        given = {"--device": device, "--dump": dump, "--with": with_, "--evidence": evidence}
        refuse_before(f"vkconv devices {command}", given)
        return
    if dump and evidence:
        raise UsageError("--dump prints facts, --evidence numbers: give one of them")
    if with_ and device:
        raise UsageError("--with is a GPU that is not here, --device one of this machine or a file: one of them")
    if dump or evidence or device or with_:
        facts = _not_here(with_) if with_ else find_device(device or "auto")
        if evidence:
            show(evident_table(facts), *notes(facts))
        elif dump:
            show_json({"schema": SCHEMA, **facts.facts}, stamp=False)
        else:
            show(Table("", (Column("fact"), Column("value")), facts.describe()))
        return
    from vkconv.backend.runtime import list_devices, select_device

    best, _ = select_device("auto")
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


def _not_here(name: str) -> Device:
    from vkconv.compilers.gpus import find_gpu
    from vkconv.compilers.live import live_facts

    return live_facts(find_gpu(name))


@devices_app.command("files")
def files(evidence: _Evident = False) -> None:
    """List the device files that vkconv ships, for --device and --limits where the device is not at hand."""
    if evidence:
        table, letters = all_devices({name: load_device(name) for name in shipped_devices()})
        show(table, f"{letters}; vkconv devices --device FILE --evidence prints the sources")
        return
    rows = []
    for name in shipped_devices():
        d = load_device(name)
        rows.append(
            (
                name,
                d.name,
                _described_driver(d),
                d.kind,
                d.limit("maxComputeWorkGroupInvocations"),
                bytes_str(d.limit("maxComputeSharedMemorySize")),
                d.subgroup_size,
                d.limit("maxPerStageDescriptorStorageBuffers"),
                len(d.facts.get("assumed", ())) or "",
            )
        )
    names = (
        *("file", "device", "driver", "kind", "invocations", "shared", "subgroup", "storage buffers"),
        "assumed fields",
    )
    show(
        Table("", [Column(name) for name in names], rows),
        "vkconv devices --device FILE --dump prints one, with its source and the fields that are assumed",
    )


def _described_driver(device: Device) -> str:
    """The driver of a device file and its version; without the version where the file assumes it."""
    if device.fact("VkPhysicalDeviceDriverProperties", "driverInfo") or device.assumes("driverVersion"):
        return device.driver
    return f"{device.driver} {'.'.join(map(str, device.driver_version))}"


@devices_app.command("import")
def import_file(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="What vulkaninfo --json wrote, or a Vulkan profile file.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Save it there instead of printing it.")
    ] = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="The profile to take, where the file has several.")] = "",
    name: Annotated[str, typer.Option(metavar="TEXT", help="The device's name, where the file has none.")] = "",
    kind: Annotated[
        str,
        typer.Option(
            "--kind", metavar="KIND", help=f"One of {', '.join(get_args(Kind))}, where the file does not say."
        ),
    ] = "",
    heap_mib: Annotated[
        int | None,
        typer.Option(min=1, metavar="MIB", help="The device's memory, which neither profiles nor vulkaninfo know."),
    ] = None,
) -> None:
    """Make a device file of a report on a device, for --device and --limits.

    What the report does not say is filled with what Vulkan requires of every device, and listed.
    """
    from vkconv.device.importer import import_device

    kinds: dict[str, Kind] = {k: k for k in get_args(Kind)}
    if kind and kind not in kinds:
        raise UsageError(f"--kind {kind!r} is not one of {', '.join(kinds)}")
    heap_bytes = None if heap_mib is None else heap_mib << 20
    refuse_to_replace([source], output)
    found = import_device(source, profile=profile, name=name, kind=kinds.get(kind), heap_bytes=heap_bytes)
    if output is None:
        show_json({"schema": SCHEMA, **found.facts}, stamp=False)
        return
    with file_errors(output):
        found.save(output)
    assumed = [field.rpartition(".")[2] for field in found.facts["assumed"]]
    lines = [f"wrote {output}: {found.name}, {found.kind}, Vulkan {found.api_version}"]
    if "memoryHeaps" in assumed:
        assumed.remove("memoryHeaps")
        lines.append(f"its memory is taken to be {bytes_str(found.heap_bytes)}: --heap-mib says how much there is")
    if "deviceType" in assumed:
        assumed.remove("deviceType")
        lines.append(f"its kind is taken to be {found.kind}: --kind says which")
    if assumed:
        lines.append(f"filled with what Vulkan requires of every device: {', '.join(assumed)}")
    show(*lines)
