#!/usr/bin/env bash
# Builds the bridge and the player with AddressSanitizer and UndefinedBehaviorSanitizer, and runs their tests so:
#     tools/sanitize.sh                        # the bridge's tests, those of faults, lives and packs; a million damaged plans
#     tools/sanitize.sh tests/gpu/bridge -k lost
# The first report ends the test's process, and fails the test. Python, kp and drivers are as they are, without
# instruments. The bridge of .venv stays: the other one lies in build/dev/sanitize, beside what .venv's was built of, and
# is put in its place by Python's sitecustomize. Safe to repeat; builds what has changed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=$root/.venv/bin/python
build=$root/build/dev/sanitize/address

mkdir -p "$build/python"
started=$SECONDS
cmake --build build/dev --target _bridge_address player_address --parallel >"$build.log" 2>&1 \
    || { tail -n 30 "$build.log" >&2; exit 1; }
echo "sanitize: built in $((SECONDS - started)) s"

cat >"$build/python/sitecustomize.py" <<END
import importlib.machinery, importlib.util, pathlib, sys
FOUND = next(pathlib.Path("$build").glob("_bridge*.so"))

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "vkconv.backend._bridge":
            loader = importlib.machinery.ExtensionFileLoader(name, str(FOUND))
            return importlib.util.spec_from_file_location(name, FOUND, loader=loader)

sys.meta_path.insert(0, Finder)
END

# Containers that cross into modules without instruments look overrun; drivers and Python keep what they have to the end.
export ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0:abort_on_error=1:handle_segv=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}"
export VKCONV_TEST_PLAYER="$build/player"
# libstdc++ too: the interceptor of exceptions looks for it when the process starts, and Python has none then.
preload="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so.6)"
LD_PRELOAD=$preload "$python" -c \
    "import vkconv.backend._bridge as b; assert b.__file__.startswith('$build'), b.__file__"
[ $# -gt 0 ] || (unset PYTHONPATH; VKCONV_FUZZ_PLANS=1000000 "$python" -m pytest -q tests/pure/test_player_plans.py)
[ $# -gt 0 ] || set -- tests/gpu/bridge tests/gpu/test_faults.py tests/gpu/test_session_lifetime.py \
    tests/gpu/test_pack_player.py tests/gpu/test_player_faults.py
# Left out: what the memory of the process is held to (freed memory is kept, to find uses of it), and a test of release builds.
LD_PRELOAD=$preload exec "$python" -m pytest -q -p no:cacheprovider --durations=5 \
    -k "not leak and not memory_behind and not memory_comes_back and not no_standard_streams" "$@"
