"""``vkconv pack``: a model as a folder for a device that vkconv itself does not run on."""

from pathlib import Path
from typing import Annotated

import typer

from vkconv.cli.inputs import make_inputs
from vkconv.cli.models import ModelArgument, find_device
from vkconv.cli.options import (
    NoPassOption,
    NoQuirksOption,
    ParamOption,
    PassDumpOption,
    PolicyOption,
    RouteOption,
    parse_params,
    parse_passes,
    parse_routes,
)
from vkconv.cli.output import file_errors, show
from vkconv.cli.passes import passes_lines, save_passes
from vkconv.core import bytes_str


def pack(
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; files in it are replaced.")],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="FILE|NAME|INDEX",
            envvar="VKCONV_DEVICE",
            help="What to plan for: a device file, the name of a shipped one, or a device of this machine.",
        ),
    ] = "auto",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="NAME=SPEC", help="Inputs to go with it: as vkconv run has them; random without."
        ),
    ] = None,
    routes: RouteOption = None,
    params: ParamOption = None,
    policy: PolicyOption = "",
    no_pass: NoPassOption = None,
    pass_dump: PassDumpOption = None,
    no_quirks: NoQuirksOption = False,
) -> None:
    """Write SPIR-V, commands, weights, inputs and expected outputs of a model for one device.

    What is there is all that a player needs to run it and to compare: docs/testing_devices.md states the format.
    """
    from vkconv.check.reference import reference_outputs
    from vkconv.graph import load_model
    from vkconv.ops import OPS
    from vkconv.plan.bound import steered
    from vkconv.plan.pack import pack as write
    from vkconv.plan.planner import Options, plan

    options = Options(
        routes=parse_routes(routes),
        params=parse_params(params),
        policy=policy,
        quirks=not no_quirks,
        skip_passes=parse_passes(no_pass),
    )
    graph = load_model(model)
    arrays, texts = make_inputs(graph.inputs, inputs)
    graph, arrays = steered(graph, OPS, arrays)
    facts = find_device(device)
    shapes = {name: array.shape for name, array in arrays.items()}
    written = save_passes(pass_dump, graph, facts, options, shapes)
    planned = plan(graph, facts, options, shapes)
    expected = reference_outputs(graph, arrays)
    folder = folder.expanduser()
    with file_errors(folder):
        lines = write(planned, folder, arrays, expected)
        nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def count(word: str) -> int:
        return sum(line.startswith(f"{word} ") for line in lines)

    show(
        f"wrote {folder}: {model} for {facts.name}, {count('dispatch')} dispatches, {count('pipeline')} pipelines, "
        f"{bytes_str(nbytes)}",
        *(f"input {name} = {text}" for name, text in texts.items()),
        *passes_lines(options, written),
    )
