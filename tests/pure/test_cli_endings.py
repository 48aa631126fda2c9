"""How commands end: errors, Ctrl-C, readers that leave, standard output that cannot be written."""

import io
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from cli_kit import ROOT, vkconv

from vkconv import entry
from vkconv.cli import main
from vkconv.core import DeviceError


def test_error_is_one_line_on_stderr_with_its_exit_code(monkeypatch, tmp_path):
    code, out, err = vkconv("show", tmp_path / "none.vkc")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "none.vkc" in err and "Traceback" not in err

    def no_device(*_):
        raise DeviceError("no Vulkan device found: install a driver")

    monkeypatch.setattr("vkconv.graph.load_model", no_device)
    assert vkconv("show", "m.vkc") == (3, "", "error: no Vulkan device found: install a driver\n")


@pytest.mark.parametrize("command", ["explain", "check"])
@pytest.mark.parametrize(
    ("target", "hint"),
    [("conv2d", "; vkconv ops conv2d shows what its calls take"), ("conv2", " (did you mean 'conv2d'?)"), ("qq", "")],
)
def test_neither_a_call_nor_a_model_says_how_both_are_written(command, target, hint):
    said = f"{target!r} is no call (OP:KEY=VALUE,...) and no .vkc, .onnx, .tflite, .pt2 or .pte file{hint}"
    assert vkconv(command, target) == (2, "", f"error: {said}\n")


@pytest.mark.parametrize("command", ["run", "show"])
def test_empty_name_of_a_model_is_told_as_that(command):
    assert vkconv(command, "")[2].startswith("error: no file is named: an empty name")


def test_unexpected_exception_keeps_its_traceback(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("vkconv.graph.load_model", broken)
    with pytest.raises(ZeroDivisionError):
        main(["show", "m.vkc"])


def test_interrupt_exits_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vkconv.graph.load_model", interrupted)
    code, out, err = vkconv("show", "m.vkc")
    assert (code, out, err.strip()) == (130, "", "")


class _Imported(types.ModuleType):
    """A command line whose import takes a SIGINT, and that then runs ``command``."""

    def __init__(self, command):
        super().__init__("vkconv.cli")
        self._command = command

    def __getattr__(self, name):
        if name != "main":
            raise AttributeError(name)
        signal.raise_signal(signal.SIGINT)
        return self._command


@pytest.fixture
def handled():
    """Sets what handles SIGINT as a process begins: pytest itself may run where it is ignored."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_interrupt_while_the_command_line_is_imported_ends_at_once(monkeypatch, handled):
    handled(signal.default_int_handler)
    told, during = [], []
    monkeypatch.setattr(os, "_exit", told.append)
    monkeypatch.setitem(sys.modules, "vkconv.cli", _Imported(lambda: during.append(signal.getsignal(signal.SIGINT))))
    entry.main()
    assert (told, during) == ([130], [signal.default_int_handler])


def test_ignored_interrupt_stays_ignored(monkeypatch, handled):
    handled(signal.SIG_IGN)
    during = []
    monkeypatch.setitem(sys.modules, "vkconv.cli", _Imported(lambda: during.append(signal.getsignal(signal.SIGINT))))
    entry.main()
    assert during == [signal.SIG_IGN]


def test_interrupt_before_there_is_a_command_exits_130(monkeypatch, handled):
    handled(signal.SIG_IGN)

    def command():
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "vkconv.cli", _Imported(command))
    with pytest.raises(SystemExit) as done:
        entry.main()
    assert done.value.code == 130


def test_entry_imports_nothing_heavy():
    code = (
        "import sys, vkconv.entry\n"
        "print([m for m in ('numpy', 'typer', 'vkconv.cli', 'vkconv.core') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="pipes end differently elsewhere")
@pytest.mark.parametrize("arguments", [["ops", "--json"], ["--help"]])
def test_reader_that_leaves_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vkconv", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("argument", ["--version", "--help", "policies"])
def test_output_that_cannot_be_written_is_an_error(argument, buffering, monkeypatch, capsys):
    with io.TextIOWrapper(Path("/dev/full").open("wb", buffering), write_through=not buffering) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as done:
            main([argument])
    told = "error: cannot write standard output: No space left on device\n"
    assert (done.value.code, capsys.readouterr().err) == (2, told)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_another_error_is_told_though_output_is_full(monkeypatch, capsys):
    with io.TextIOWrapper(Path("/dev/full").open("wb", 0), write_through=True) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit):
            main(["show", "none.vkc"])
    assert "none.vkc" in capsys.readouterr().err


def test_closed_output_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    told = capsys.readouterr().err
    assert (done.value.code, told.count("\n")) == (2, 1)
    assert told.startswith("error: cannot write standard output: it is closed")


def test_closed_standard_error_loses_only_what_is_told_there(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as done:
        main(["show", "none.vkc"])
    sys.stderr.close()
    assert (done.value.code, capsys.readouterr().out) == (2, "")


def test_an_error_of_another_file_is_not_of_output(monkeypatch):
    def broken(*_):
        raise OSError("a bug")

    monkeypatch.setattr("vkconv.graph.load_model", broken)
    with pytest.raises(OSError, match="a bug"):
        vkconv("show", "m.vkc")
