"""Options that several commands share, and what their texts mean."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from vkconv.cli.output import given_as, show, show_json
from vkconv.core import FLOAT_TYPES, DType, InputError, Shape, UsageError, did_you_mean, is_count, shape_str
from vkconv.graph import SUFFIXES, TensorSpec
from vkconv.ops.core.calls import parse_shape
from vkconv.table import Column, Table

MODELS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
"""How the names of files end that models come in, as help texts have it."""

DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        "-d",
        metavar="SEL",
        envvar="VKCONV_DEVICE",
        help="auto (discrete before integrated before CPU), an index of vkconv devices, part of a name, or the shipped "
        "file of the device, such as lavapipe.",
    ),
]
RouteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--route",
        metavar="OP=ROUTE|node:NAME=ROUTE",
        envvar="VKCONV_ROUTE",
        help="Force a route for an op or a node; repeat it, or separate several by commas. "
        "A forced route may be slow, never wrong.",
    ),
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="KEY=NAME:VALUE[,NAME:VALUE]",
        envvar="VKCONV_PARAM",
        help="Set parameters of routes, such as tile sizes, where KEY is OP, OP:ROUTE or node:NAME: "
        "conv2d=local:64 or conv2d:direct_tile=channels:8,columns:4. Repeat it, or separate several by commas. "
        "vkconv explain CALL lists them; they may be slow, never wrong.",
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        "--dim",
        metavar="NAME=SHAPE",
        help="What a model leaves open: the shape of an input (--shape x=1x3x48x320), or a named dimension of its "
        "inputs (--dim n=1); repeat it.",
    ),
]
BoundAtOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="NAME=ROWS",
        help="The rows that a named dimension has when its caches are full (--bound past_sequence_length=512): what is "
        "taken is the run that fills them. --shape and --dim are those of the first run; repeat it.",
    ),
]
BoundOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="NAME=ROWS",
        help="The most that a named dimension grows to from run to run (--bound past_sequence_length=512): its caches "
        "stay on the device, and a plan serves all lengths in them. --shape and --dim are those of the first run; "
        "repeat it.",
    ),
]
CallsDTypeOption = Annotated[
    str, typer.Option("--dtype", metavar="DTYPE", help="Replace the element type of every call: f32, f16, ...")
]
DTypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="TYPE|auto|OP=TYPE|node:NAME=TYPE",
        envvar="VKCONV_DTYPE",
        help="Store floats as f16 or bf16 (or f32), all of them or those of an op or a node; sums stay f32, and so do "
        "inputs and outputs without --io-dtype. auto is f16, but f32 for the nodes that f16 does not suffice for with "
        "the inputs that are given. Repeat it, or separate several by commas: f16,softmax=f32. With check --all-ops: "
        "what to check in.",
    ),
]
IODTypeOption = Annotated[
    str,
    typer.Option(
        "--io-dtype",
        metavar="TYPE",
        help="Take inputs and give outputs that are floats in f16, bf16 or f32. Default: the model's own types.",
    ),
]
FewOption = Annotated[
    bool,
    typer.Option(
        "--few",
        help="With --all-ops: of each route the smallest cases that between them have all its operands and attributes, "
        "with planned parameters.",
    ),
]
HalfSumsOption = Annotated[
    bool,
    typer.Option(
        "--half-sums",
        help="Let calls of f16 take the routes that multiply and add in f16, on GPUs that do: faster, and less exact.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="SYSTEM",
        help="Choose routes by the published rules of another system for the ops that they are for: executorch for "
        "convolutions, iree for gradients, matrix products and reductions, ck (composable_kernel) for gradients by "
        "weights. They may be slow on this device, never wrong.",
        envvar="VKCONV_POLICY",
    ),
]
NoPassOption = Annotated[
    list[str] | None,
    typer.Option(
        "--no-pass",
        metavar="NAME",
        help="Plan without this pass; vkconv passes lists them. Repeat it, or separate several by commas.",
    ),
]
PassDumpOption = Annotated[
    Path | None,
    typer.Option(
        "--pass-dump",
        metavar="DIR",
        help="Save the graph there as it is written and after each pass, as text: two files in a row differ in the "
        "lines of the nodes that the pass rewrote.",
    ),
]
NoQuirksOption = Annotated[
    bool,
    typer.Option(
        "--no-quirks",
        help="Plan as if the driver had none of its known quirks (vkconv doctor lists them). May be wrong.",
    ),
]
StagingOption = Annotated[
    bool | None,
    typer.Option(
        "--staging/--no-staging",
        help="Copy inputs and outputs through staging buffers, or wherever memory types allow it do not; without "
        "either the policy transfers.in_place decides.",
        show_default=False,
    ),
]
PiecesOption = Annotated[
    int | None,
    typer.Option(
        "--pieces",
        metavar="N",
        min=1,
        help="Where an input is streamed, run the first launches by images, as at most so many pieces of it come; 1: "
        "not. Without it the policy transfers.early decides.",
        show_default=False,
    ),
]
FixedPushOption = Annotated[
    bool | None,
    typer.Option(
        "--fixed-push/--no-fixed-push",
        help="Have what launches push as constants of their pipelines, or push it; without either the policies "
        "pipelines.fixed_push and pipelines.pushing decide.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="BYTES",
        envvar="VKCONV_MEMORY",
        help="Refuse to take more memory for weights, activations, inputs and outputs: 512MiB, 2GiB, or plain bytes. "
        "Default: the device's heap.",
    ),
]


def _listed(context: typer.Context, suites: list[str] | None) -> list[str] | None:
    """The suites that are asked for; for ``list`` prints those that ship, and leaves."""
    if "list" not in (suites or []):
        return suites
    from vkconv.bench.suites import read_suite, shipped_suites, suite_title

    rows = [(name, len(read_suite(name)), suite_title(name)) for name in shipped_suites()]
    table = Table("", (Column("suite"), Column("calls"), Column("what it is")), rows)
    if context.params.get("as_json"):
        show_json({"schema": "vkconv.suites/1", "suites": table.rows})
    else:
        show(table)
    raise typer.Exit


SuitesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--suite",
        metavar="FILE|NAME|list",
        callback=_listed,
        help="A shipped suite, a .txt of calls, a .csv of conv shapes; repeatable. list: those that ship.",
    ),
]
WorkersOption = Annotated[
    str,
    typer.Option(
        "--workers",
        metavar="dask://HOST:PORT",
        help="Do it on every worker of this scheduler of dask.distributed, one on each board: docs/testing_devices.md.",
    ),
]
JsonOption = Annotated[
    # Eager, so that callbacks of other options know of it.
    bool,
    typer.Option("--json", is_eager=True, help="Print JSON instead of text."),
]


def parse_routes(texts: Iterable[str] | None) -> dict[str, str]:
    """``["conv2d=direct,matmul=tiled", "node:n1=gemm"]`` as a dict; a later text outranks an earlier one."""
    routes: dict[str, str] = {}
    for text in ",".join(texts).split(",") if texts else ():
        key, equals, route = text.strip().rpartition("=")
        if not equals or not key or not route:
            by = given_as(text, "--route")
            raise UsageError(f"{by} {text!r} is not OP=ROUTE or node:NAME=ROUTE; vkconv ops lists ops and routes")
        routes[key] = route
    return routes


AUTO = "auto"


def parse_dtypes(texts: Iterable[str] | None) -> tuple[DType | None, dict[str, DType], bool]:
    """``["f16,softmax=f32", "node:n1=bf16"]`` as the type of all floats (None: their own), that of ops and
    of nodes, and whether the first is to be found (``auto``)."""
    dtype: DType | None = None
    dtypes: dict[str, DType] = {}
    found = False
    for text in ",".join(texts).split(",") if texts else ():
        key, equals, word = text.strip().rpartition("=")
        if text.strip() == AUTO:
            found = True
            continue
        if word not in FLOAT_TYPES or (equals and not key):
            raise UsageError(
                f"{given_as(text, '--dtype')} {text!r} is not auto, TYPE, OP=TYPE or node:NAME=TYPE, TYPE one of "
                f"{', '.join(FLOAT_TYPES)}"
            )
        if key:
            dtypes[key] = DType(word)
        else:
            dtype = DType(word)
    return dtype, dtypes, found


def parse_io_dtype(text: str) -> DType | None:
    """``f16`` as a type of floats; None for nothing. Raises UsageError."""
    if text and text not in FLOAT_TYPES:
        raise UsageError(f"--io-dtype {text!r} is not one of {', '.join(FLOAT_TYPES)}")
    return DType(text) if text else None


def parse_floats(texts: Iterable[str] | None) -> list[DType]:
    """``["f16,bf16"]`` as element types, each once; f32 for nothing. Raises UsageError for what is none of floats."""
    words = dict.fromkeys(",".join(texts).split(",") if texts else [str(DType.F32)])
    for word in words:
        if word not in FLOAT_TYPES:
            by = given_as(word, "--dtype")
            raise UsageError(f"{by} {word!r}: with --all-ops it is one or more of {', '.join(FLOAT_TYPES)}")
    return [DType(word) for word in words]


def parse_params(texts: Iterable[str] | None) -> dict[str, dict[str, int | str]]:
    """``["conv2d=local:64,tile:64x64x16,matmul=rows:8"]`` as a dict of dicts; a later value outranks an earlier one."""
    params: dict[str, dict[str, int | str]] = {}
    for text in texts or ():
        key = ""
        for part in text.split(","):
            before, equals, setting = part.strip().rpartition("=")
            key = before if equals else key
            name, colon, value = setting.partition(":")
            is_name = re.fullmatch(r"\w*[A-Za-z_]\w*", value, re.ASCII) is not None
            if not key or not name or not colon or not (is_name or is_count(value)):
                raise UsageError(
                    f"{given_as(text, '--param')} {text!r}: {part.strip()!r} is not KEY=NAME:VALUE, where KEY is OP, "
                    "OP:ROUTE, node:NAME or OP/CALL for a call inside it, and NAME:VALUE may be followed by more of "
                    "them; write for example --param conv2d=local:64"
                )
            params.setdefault(key, {})[name] = int(value) if is_count(value) else value
    return params


def parse_passes(texts: Iterable[str] | None) -> tuple[str, ...]:
    """``["fuse_chain,fold_pad", "fuse_reduce"]`` as names, each once; UsageError for what is no pass, or required."""
    from vkconv.plan.passes import skipped_passes

    names = dict.fromkeys(name.strip() for text in texts or () for name in text.split(","))
    skipped_passes(names)
    return tuple(names)


def parse_bytes(text: str | None, option: str) -> int | None:
    """``512MiB``, ``1.5GB`` or ``4096`` as bytes; None for None. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(i?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        by = given_as(text, option)
        raise UsageError(f"{by} {text!r} is no number of bytes; write for example {option} 512MiB")
    number, unit, binary = match.groups()
    nbytes = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))
    if not nbytes:
        raise UsageError(f"{given_as(text, option)} {text!r} allows not one byte; write for example {option} 512MiB")
    return nbytes


def refuse_shapes_of_call(texts: Sequence[str] | None) -> None:
    """UsageError for shapes beside a call."""
    if texts:
        by = given_as(texts[0], "--shape", "--dim")
        raise UsageError(f"{by} is for models; a call has its shapes in its text")


def parse_shapes(texts: Iterable[str] | None) -> dict[str, Shape]:
    """``["x=1x3x48x320", "n=1"]`` as a dict of shapes."""
    shapes: dict[str, Shape] = {}
    for text in texts or ():
        name, equals, shape = text.rpartition("=")
        if not equals or not name or name in shapes:
            problem = "is there twice" if name in shapes else "is not NAME=SHAPE"
            by = given_as(text, "--shape", "--dim")
            raise UsageError(f"{by} {text!r} {problem}; write for example --shape x=1x3x48x320, or --dim n=1")
        try:
            shapes[name] = parse_shape(shape)
        except UsageError as error:
            raise UsageError(f"{given_as(text, '--shape', '--dim')} {text}: {error}") from None
    return shapes


def parse_bounds(texts: Iterable[str] | None) -> dict[str, int]:
    """``["past_sequence_length=512"]`` as a dict. Raises UsageError."""
    bounds: dict[str, int] = {}
    for text in texts or ():
        name, equals, rows = text.rpartition("=")
        if not equals or not name or not is_count(rows) or name in bounds:
            problem = "is there twice" if name in bounds else "is not NAME=ROWS"
            raise UsageError(f"--bound {text!r} {problem}; write for example --bound past_sequence_length=512")
        bounds[name] = int(rows)
    return bounds


def bound_shapes(
    inputs: Mapping[str, TensorSpec],
    texts: Iterable[str] | None,
    option: str = "--shape",
    known: Mapping[str, Shape] | None = None,
) -> dict[str, Shape]:
    """The shapes of a model's inputs that --shape and --dim give, with those that are ``known`` otherwise: a name is
    that of an input, else of a dimension.

    Raises UsageError for a text that is neither, and InputError with a line to copy when inputs have dimensions that
    are open still.
    """
    from vkconv.plan.bound import named_shapes

    shapes, dims = dict(known or {}), {}
    for name, shape in parse_shapes(texts).items():
        text = f"{name}={shape_str(shape)}"
        if name in inputs and name in shapes and shapes[name] != shape:
            by = given_as(text, "--shape", "--dim")
            raise UsageError(f"{by} {text}: --input says {shape_str(shapes[name])}; give one")
        if name in inputs:
            shapes[name] = shape
        elif len(shape) == 1:
            (dims[name],) = shape
        else:
            taken = ", ".join(f"{n} ({spec})" for n, spec in inputs.items())
            hint = did_you_mean(name, inputs)
            by = given_as(text, "--shape", "--dim")
            if any(name in spec.shape for spec in inputs.values()):
                raise InputError(f"{by} {text}: {name!r} is a dimension, and takes one number")
            raise InputError(f"{by} {text}: the model has no input {name!r}{hint}; it takes {taken}")
    shapes = named_shapes(inputs, shapes, dims)
    missing = [name for name, spec in inputs.items() if not spec.is_static and name not in shapes]
    if missing:
        wanted = ", ".join(f"{name!r} is {shape_str(inputs[name].shape)}" for name in missing)
        example = " ".join(
            f"{option} {name}={shape_str(d if isinstance(d, int) else 1 for d in inputs[name].shape)}"
            for name in missing
        )
        symbols = dict.fromkeys(d for name in missing for d in inputs[name].shape if isinstance(d, str))
        or_dims = " ".join(f"--dim {symbol}=1" for symbol in symbols if symbol not in dims)
        raise InputError(f"input {wanted}: say how large the named dimensions are, for example {example}, or {or_dims}")
    return shapes
