"""The command line: one typer application; every command lives in a module of its group.

Modules that take time to import (the backend, ONNX, rich) are imported inside the commands that need them.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vkconv import __version__
from vkconv.cli import (
    bench,
    check,
    compare,
    compile,
    compilers,
    devices,
    doctor,
    estimate,
    explain,
    models,
    ops,
    output,
    pack,
    passes,
    phone,
    policies,
    run,
    tune,
)
from vkconv.core import UsageError, VkconvError, VkconvWarning
from vkconv.exits import EXIT_BROKEN_PIPE

_STANDARD_OUTPUT = Path("standard output")  # as errors name it


@contextlib.contextmanager
def _endings() -> Iterator[None]:
    """Let errors end in ``error: ...`` with their exit code, also those of standard output, warnings of vkconv show as
    ``warning: ...``, and a reader that has left end the command quietly."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", VkconvWarning)
            warnings.showwarning = _show_warning
            try:
                yield
            except OSError as error:
                if not isinstance(error, BrokenPipeError):
                    _flush("\n")  # if printing raised it, this raises too
                raise
            finally:
                _flush()
    except VkconvError as error:
        _say("error", "1;31", error)
        raise typer.Exit(error.exit_code) from None
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(EXIT_BROKEN_PIPE) from None


def _flush(more: str = "") -> None:
    """Write what was printed, and ``more``. UsageError where that cannot be; BrokenPipeError where its reader has
    left."""
    try:
        with output.file_errors(_STANDARD_OUTPUT):
            if more:  # a full device refuses nothing at all too
                sys.stdout.write(more)
            sys.stdout.flush()
    except UsageError:
        _drop_output()
        raise


def _drop_output() -> None:
    """What is still buffered has nowhere to go, and must not be tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_python_shows = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    if issubclass(category, VkconvWarning):
        _say("warning", "1;33", message)
    else:
        _python_shows(message, category, *args, **kwargs)


def _say(word: str, colour: str, message: object) -> None:
    bold, plain = (f"\x1b[{colour}m", "\x1b[0m") if _colours(sys.stderr.isatty()) else ("", "")
    print(f"{bold}{word}:{plain} {output.indented(str(message))}", file=sys.stderr)


class _Group(TyperGroup):
    def make_context(self, info_name: str | None, args: list[str], *more: Any, **kwargs: Any) -> Any:
        args = output.begin(args)
        with _endings():  # --help prints here
            return super().make_context(info_name, args, *more, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _endings():
            return super().invoke(ctx)


def _colours(terminal: bool) -> bool:
    return terminal and not os.environ.get("NO_COLOR")


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"vkconv {__version__}")
        raise typer.Exit


@app.callback()
def _vkconv(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    wide: Annotated[
        bool, typer.Option(output.WIDE, help="Print a row of a table on one line, however long; goes anywhere.")
    ] = False,
) -> None:
    """Run convolution networks on any Vulkan device, and see why they run as they do.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage or input, 3 no usable device, 130 interrupted (Ctrl-C),
    143 terminated (SIGTERM).
    """


app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("check")(check.check)
app.command("bench")(bench.bench)
app.command("compile")(compile.compile_)
app.command("estimate")(estimate.estimate)
app.add_typer(compilers.compilers_app, name="compilers")
app.command("tune")(tune.tune)
app.command("compare")(compare.compare)
app.command("convert")(models.convert)
app.command("extract")(models.extract)
app.command("pack")(pack.pack)
app.command("show")(models.show_model)
app.command("ops")(ops.ops)
app.command("passes")(passes.passes)
app.command("policies")(policies.policies)
app.add_typer(devices.devices_app, name="devices")
app.add_typer(phone.phone_app, name="phone")
app.command("doctor")(doctor.doctor)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line ``argv`` (default: the process's own); always ends in SystemExit."""
    # Streams that a shell has closed (>&-) are None.
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        error = UsageError(f"cannot write {_STANDARD_OUTPUT}: it is closed; send it to a file, or to {os.devnull}")
        _say("error", "1;31", error)
        raise SystemExit(error.exit_code)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names and metadata of models may hold what a terminal's encoding does not.
        sys.stdout.reconfigure(errors="backslashreplace")
    app(args=None if argv is None else list(argv), prog_name="vkconv")
