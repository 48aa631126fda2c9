"""Every operation on a file fails in turn, as SQLite tests it: the old file or the new one is there, whole; nothing is
left beside it or open; the error says what the system said; and the next attempt succeeds.

A library before libc answers for it, in a process of its own, for the files of one folder.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/types.h>
int calls, fail_at, fail_with, stays;  /* operations from 1: number fail_at fails, and all later if it stays */
char failed[32];
static char ours[4096];
static int fails(const char *name) {
    int now = ++calls == fail_at || (fail_at && stays && calls > fail_at && !strcmp(name, failed));
    if (now) { strncpy(failed, name, sizeof failed - 1); errno = fail_with; }
    return now;
}
static int open_at(int folder, const char *path, int flags, int mode) {
    static int (*real)(int, const char *, int, ...);
    if (!real) real = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    int is_ours = path && strstr(path, "/faulty/") != 0;
    if (is_ours && fails("open")) return -1;
    int file = real(folder, path, flags, mode);
    if (file >= 0 && file < (int)sizeof ours) ours[file] = (char)is_ours;
    return file;
}
#define MODE va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list);
int open(const char *path, int flags, ...) { MODE return open_at(-100, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return open_at(-100, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE return open_at(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE return open_at(folder, path, flags, mode); }
static int known(int file) { return file >= 0 && file < (int)sizeof ours && ours[file]; }
#define ON_FILE(type, name, parameters, arguments)                                 \
    type name parameters {                                                         \
        static type (*real) parameters;                                            \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name);            \
        if (known(file) && fails(#name)) return -1;                                \
        return real arguments;                                                     \
    }
ON_FILE(ssize_t, read, (int file, void *to, size_t count), (file, to, count))
ON_FILE(int, fsync, (int file), (file))
ON_FILE(int, fchmod, (int file, mode_t mode), (file, mode))
ON_FILE(int, fchown, (int file, uid_t user, gid_t group), (file, user, group))
ON_FILE(int, flock, (int file, int how), (file, how))
/* A disk that fills up takes half of it. */
ssize_t write(int file, const void *from, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (!known(file) || !fails("write")) return real(file, from, count);
    if (stays && calls == fail_at && count > 1) return real(file, from, count / 2);
    return -1;
}
int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real) real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return strstr(to, "/faulty/") && fails("rename") ? -1 : real(from, to);
}
"""
_PROGRAM = """
import ctypes, errno, os, sys
from pathlib import Path
import targets
from vkconv import core
from vkconv.bench.files import read_result, write_result
from vkconv.cli.output import file_errors
from vkconv.core import VkconvError, cache_write
from vkconv.device import load_device
from vkconv.files import read_cache
from vkconv.graph.vkc import load_vkc, save_vkc
from vkconv.plan.measured import add_to_table, read_table, write_table

library = ctypes.CDLL(None)
calls, fail_at, fail_with, stays = (ctypes.c_int.in_dll(library, n) for n in ("calls", "fail_at", "fail_with", "stays"))
failed = (ctypes.c_char * 32).in_dll(library, "failed")
folder = Path(sys.argv[1]) / "faulty"
folder.mkdir()

old = {
    "net.vkc": targets._vkc_seeds()[0],
    "result.json": targets._result_seeds()[0],
    "table.json": targets._measured_seeds()[0],
    "more.json": targets._measured_seeds()[0],
    "device.json": targets._device_seeds()[0],
    "thing.spv": b"old" * 9999,
}
for name, data in old.items():
    (folder / name).write_bytes(data)
graph, result, table = targets.network(), read_result(folder / "result.json"), read_table(folder / "table.json")

def cached(path):
    with cache_write(path) as file:
        file.write(b"new" * 99999)

def reported(write):
    def attempt(path):
        with file_errors(path):
            write(path)
    return attempt

WRITERS = {
    "net.vkc": lambda path: save_vkc(graph, path),
    "result.json": reported(lambda path: write_result(result, [path])),
    "table.json": reported(lambda path: write_table(table, path)),
    "more.json": reported(lambda path: add_to_table(table, path)),
    "thing.spv": cached,
}
READERS = {
    "net.vkc": lambda path: sorted(load_vkc(path).constants),
    "result.json": read_result,
    "table.json": read_table,
    "device.json": lambda path: load_device(path).facts,
    "thing.spv": lambda path: read_cache(path, 1 << 24),
}

def open_files():
    return len(os.listdir("/proc/self/fd"))

def failing(run, path, number, code, stay):
    core._tidied.clear()
    calls.value, fail_with.value, stays.value, failed.value = 0, code, stay, b""
    fail_at.value = number
    try:
        return run(path), None
    except (VkconvError, OSError) as error:
        return None, error
    finally:
        fail_at.value = 0

tried, errors, kinds = 0, 0, set()
for name, write in WRITERS.items():
    path = folder / name
    failing(write, path, 0, 0, 0)
    count = calls.value
    new = path.read_bytes()
    for stay in (0, 1):
        for code in (errno.ENOSPC, errno.EIO):
            for number in range(1, count + 1):
                path.write_bytes(old[name])
                if name == "thing.spv":
                    path.chmod(0o644)
                before = open_files()
                _, error = failing(write, path, number, code, stay)
                at = (name, number, failed.value.decode(), os.strerror(code), stay, repr(error))
                kinds.add(failed.value.decode())
                assert failed.value, at
                held = path.read_bytes()
                assert held == new if error is None else held in (old[name], new), at
                assert error is None or os.strerror(code) in str(error), at
                assert error is None or isinstance(error, VkconvError) or name == "thing.spv", at
                assert sorted(os.listdir(folder)) == sorted(old), (at, os.listdir(folder))
                assert open_files() == before, at
                write(path)
                assert path.read_bytes() == new, at
                tried, errors = tried + 1, errors + (error is not None)
for name, read in READERS.items():
    path = folder / name
    want, _ = failing(read, path, 0, 0, 0)
    for number in range(1, calls.value + 1):
        before = open_files()
        got, error = failing(read, path, number, errno.EIO, 0)
        at = (name, number, failed.value.decode(), repr(error))
        kinds.add(failed.value.decode())
        if error is None:
            assert got in (want, b"") if name == "thing.spv" else got == want, at
        else:
            assert isinstance(error, VkconvError) and name in str(error), at
        assert open_files() == before, at
        tried, errors = tried + 1, errors + (error is not None)
print(tried, errors, *sorted(kinds))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_whichever_operation_fails_the_file_is_whole(tmp_path: Path) -> None:
    (tmp_path / "faults.c").write_text(_LIBRARY)
    library = tmp_path / "faults.so"
    build = ["gcc", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "faults.c", "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    tests = Path(__file__).parent.parent
    paths = [str(tests / folder) for folder in ("", "pure", "fuzz")]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(filter(None, [os.environ.get("LD_PRELOAD", ""), str(library)])),
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    tried, errors, *kinds = done.stdout.split()
    assert int(tried) > 100 and int(errors) > 50
    assert {"open", "write", "fsync", "rename", "fchmod", "read", "flock"} <= set(kinds)
