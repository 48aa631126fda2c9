"""The player as Android's NDK would build it, as far as that goes without one: by clang and libc++ for aarch64, against
a C library that is not GNU's, with what it takes of the C library held to what Android's has."""

import importlib.util
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from required import unavailable

from vkconv.phone.build import _API, _FLAGS, sources

pytestmark = pytest.mark.boards

# The API level from which on bionic has it for arm64, whose first is 21: libc/libc.map.txt and libdl/libdl.map.txt of
# AOSP's platform/bionic. A function that is not here is to be looked up there, for no phone tells of it before it runs.
SINCE_21 = """
__cxa_atexit __sched_cpucount _Exit _exit close closedir dlopen dlsym fclose fflush fopen fork fprintf fwrite kill
ldexp memchr memcmp memcpy memmove memset mkdir opendir perror pipe poll prctl printf puts read readdir
sched_getaffinity sched_setaffinity snprintf strcmp strerror strlen strsignal strstr strtod waitpid write
"""
BIONIC = dict.fromkeys(SINCE_21.split(), 21) | {"stderr": 23, "stdout": 23}
# What the NDK's own libc++, unwinder and linker bring; and names that musl or code for it has in the place of bionic's:
# errno is __errno there, and clang calls memcmp for Android.
BROUGHT = re.compile(r"_Z\w+|__cxa_(?!atexit)\w+|_Unwind_\w+|__gxx_personality_v0|__dso_handle|__errno_location|bcmp")


def test_the_player_takes_only_what_androids_c_library_has(tmp_path):
    if not (importlib.util.find_spec("ziglang") and shutil.which("nm")):
        unavailable("pip install ziglang brings clang and libc++ for aarch64; nm is binutils'")
    (tmp_path / "include").mkdir()
    for name in ("vulkan", "vk_video"):
        (tmp_path / "include" / name).symlink_to(f"/usr/include/{name}")
    clang = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", *_FLAGS, "-Werror"]

    def compiled(path):
        made = tmp_path / f"{path.stem}.o"
        words = [*clang, "-I", tmp_path / "include", "-c", path, "-o", made]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, (path for path in sources() if path.suffix == ".cpp")))
    told = subprocess.run(["nm", "-u", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    taken = {name for name in re.findall(r" U (\w+)", told) if not BROUGHT.fullmatch(name)}
    assert "fork" in taken and "dlopen" in taken
    assert {name for name in taken if BIONIC.get(name, 99) > _API} == set()
