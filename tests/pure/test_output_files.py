"""Files that commands write: what stands in their place, links, modes, owners, devices, pipes, standard output."""

import ast
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_kit import ROOT, vkconv

from vkconv.core import atomic_write, cache_write
from vkconv.device import load_device
from vkconv.graph import Graph, Node, TensorSpec
from vkconv.graph.vkc import load_vkc, save_vkc

# What writes files, and how it is called, by which a call of it is found.
_WRITERS = {"write_text", "write_bytes", "rename", "replace", "tofile", "save", "savez", "save_file", "mkstemp"}
# Those that are no output: the first place where a part of a file is, and folders that go when the process does.
_ALLOWED = {
    ("vkconv/core.py", "replace"),  # atomic_write
    ("vkconv/cli/__init__.py", "open"),  # the null device, in place of a closed stderr
    ("vkconv/glsl.py", "write_bytes"),  # a temporary folder
    ("vkconv/compilers/runner.py", "write_bytes"),  # the same
    ("vkconv/compilers/blocks.py", "write_bytes"),  # the same
    ("vkconv/compilers/packages.py", "write_text"),  # a new folder, which
    ("vkconv/compilers/install.py", "write_bytes"),
    ("vkconv/compilers/install.py", "rename"),  # is put in its place at the end
    ("vkconv/compilers/installed.py", "replace"),  # what the C compiler has written
}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.vkc"
    save_vkc(Graph({"x": TensorSpec((2,))}, ("y",), (Node("n", "relu", ("x",), ("y",), {}),), {}), path)
    return path


def write(path, data=b"new"):
    with atomic_write(path) as file:
        file.write(data)


def device(folder, number, else_path):
    """A device of our own: where this goes wrong, it must not take the machine's. Without the right to make one, the
    machine's, which then cannot be replaced either."""
    path = folder / f"device{number}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, number))
        path.write_bytes(b"")  # a file system may have them and not let them be used
    except OSError:
        path.unlink(missing_ok=True)
        return Path(else_path)
    return path


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    for data in (b"first", b"second"):  # the first one makes what the link leads to
        write(link, data)
        assert link.is_symlink()
        assert target.read_bytes() == data
    assert sorted(tmp_path.rglob("*")) == [link, target.parent, target]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o444])
def test_the_mode_is_kept(tmp_path, mode):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(mode)
    with atomic_write(path) as file:
        (part,) = tmp_path.glob(".*.part")
        assert mode_of(part) == mode
        file.write(b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", mode)


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "a.json")
        with cache_write(tmp_path / "b.spv") as file:
            file.write(b"cached")
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "a.json"), mode_of(tmp_path / "b.spv")) == (0o640, 0o640)


def test_the_owner_is_kept(tmp_path, monkeypatch):
    path, given = tmp_path / "a.json", []
    path.write_bytes(b"old")
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    else:
        monkeypatch.setattr(os, "fchown", lambda file, user, group: given.append((user, group)))
    write(path)
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (1234, 2345) or given == [(os.getuid(), os.getgid())]


def test_who_may_not_give_files_away_keeps_the_mode(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError

    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    path.chmod(0o600)
    monkeypatch.setattr(os, "fchown", refused)
    write(path)
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)


def test_a_device_stays_one(tmp_path):
    null, full = device(tmp_path, 3, "/dev/null"), device(tmp_path, 7, "/dev/full")
    write(null)
    assert stat.S_ISCHR(null.stat().st_mode)
    with pytest.raises(OSError, match="No space left"):
        write(full)
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.json"
    link.symlink_to(null)
    write(link)
    assert link.is_symlink() and list(link.parent.iterdir()) == [link]


def test_a_pipe_gets_all_of_it(tmp_path):
    pipe, got = tmp_path / "pipe.npy", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    data = os.urandom(300_000)
    write(pipe, data)
    reader.join(10)
    assert got == [data]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_and_a_circle_of_links_are_errors(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "loop"):
        with pytest.raises(OSError, match=r"Is a directory|symbolic links"):
            write(path)
    assert list(tmp_path.iterdir()) == [tmp_path / "loop"]


def test_a_cache_replaces_a_link(tmp_path):
    target, link = tmp_path / "theirs", tmp_path / "a.spv"
    target.write_bytes(b"theirs")
    link.symlink_to(target)
    with cache_write(link) as file:
        file.write(b"ours")
    assert (link.is_symlink(), link.read_bytes(), target.read_bytes()) == (False, b"ours", b"theirs")


# ---- commands


@pytest.mark.long
def test_standard_output_is_a_file_where_an_option_says_so(model, tmp_path):
    done = subprocess.run([sys.executable, "-m", "vkconv", "convert", model, "-"], capture_output=True, cwd=ROOT)
    assert (done.returncode, b"wrote -: 1 node," in done.stderr) == (0, True)
    (tmp_path / "copy.vkc").write_bytes(done.stdout)
    assert load_vkc(tmp_path / "copy.vkc").nodes == load_vkc(model).nodes


@pytest.mark.long
def test_standard_output_that_is_a_file_is_written_to_not_replaced(model, tmp_path):
    out = tmp_path / "out"
    with out.open("wb") as file:
        command = [sys.executable, "-m", "vkconv", "convert", str(model), "/dev/stdout"]
        subprocess.run(command, stdout=file, cwd=ROOT, check=True)
    data = out.read_bytes()
    assert data.startswith(model.read_bytes())
    assert b"wrote /dev/stdout: 1 node," in data


@pytest.mark.parametrize("command", ["convert", "import"])
def test_commands_follow_links_and_keep_modes(model, tmp_path, command):
    target, link = tmp_path / "target", tmp_path / ("link.vkc" if command == "convert" else "link.json")
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    report = Path(__file__).parent / "data" / "vulkaninfo-llvmpipe.json"
    words = {"convert": ("convert", model, link), "import": ("devices", "import", report, "-o", link)}[command]
    assert vkconv(*words)[0] == 0
    assert link.is_symlink() and mode_of(target) == 0o600
    assert load_vkc(link).nodes if command == "convert" else load_device(link).name


def test_a_full_disk_is_an_error_that_names_the_file(model, tmp_path):
    full = device(tmp_path, 7, "/dev/full")
    code, _, err = vkconv("convert", model, full)
    assert (code, str(full) in err, "No space left" in err) == (2, True, True)


@pytest.mark.long
def test_nothing_else_writes_files():
    found = set()
    for path in (ROOT / "vkconv").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = str(path.relative_to(ROOT))
            if name == "open" and place != "vkconv/core.py":
                modes = [
                    a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)
                ]
                if any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes):
                    found.add((place, name))
            elif name in _WRITERS and _is_of_files(node, name):
                found.add((place, name))
    assert found == _ALLOWED, "write by vkconv.core.atomic_write"


def _is_of_files(node, name):
    """Whether a call may write a file by its name: texts, structs and dataclasses have `replace` too, and what is saved
    to an open file, called so, is written by `atomic_write`."""
    if name == "replace":
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        return len(node.args) == 1 and not node.keywords and owner not in ("dataclasses", "msgspec.structs")
    if name in ("save", "savez", "save_file"):
        first = node.args[0] if node.args else None
        return (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id == "np" and getattr(first, "id", "") != "file")
        )
    return True


RELU = "relu:x=9"


@pytest.mark.parametrize("way", ["same", "relative", "symlink", "hard link", "link as source"])
def test_convert_keeps_its_source(way, model, tmp_path, monkeypatch):
    before, source, target = model.read_bytes(), model, tmp_path / "other.vkc"
    if way == "same":
        target = model
    elif way == "relative":
        monkeypatch.chdir(tmp_path)
        target = Path(model.name)
    elif way == "hard link":
        target.hardlink_to(model)
    else:
        target.symlink_to(model)
    if way == "link as source":
        source, target = target, source
    code, out, err = vkconv("convert", source, target)
    assert (code, out, model.read_bytes()) == (2, "", before)
    assert err.startswith(f"error: cannot write {target}: ") and "name another file" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["extract", "MODEL", "--to", "a", "-o", "LINK.vkc"],
        ["check", "MODEL", "-o", "LINK.json"],
        ["check", RELU, "--limits", "MODEL", "-o", "LINK.json"],
        ["bench", RELU, "MODEL", "-o", "LINK.json"],
        ["tune", "MODEL", "-o", "LINK.json"],
        ["compare", "MODEL", "other.json", "-o", "LINK.json"],
        ["compile", "MODEL", "--with", "ga102", "-o", "LINK.json"],
        ["estimate", "MODEL", "-d", "navi31", "-o", "LINK.json"],
        ["devices", "import", "MODEL", "-o", "LINK.json"],
        ["phone", "bench", "MODEL", "-o", "LINK.json"],
        ["phone", "check", "MODEL", "-o", "LINK.json"],
        ["run", "MODEL", "--trace", "LINK.json"],
        ["run", "MODEL", "--node-data", "LINK.json"],
    ],
    ids=lambda argv: " ".join(argv),
)
def test_no_command_writes_over_what_it_reads(argv, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    link = Path(argv[-1])
    link.hardlink_to(model)
    before = model.read_bytes()
    code, out, err = vkconv(*(str(model) if word == "MODEL" else word for word in argv))
    assert (code, out, model.read_bytes()) == (2, "", before)
    assert f"cannot write {link}: it is {model}" in err
