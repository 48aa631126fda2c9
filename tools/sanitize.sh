#!/usr/bin/env bash
# Builds the bridge and the player with sanitizers, and runs their tests so; fails at the first report, and prints it:
#     tools/sanitize.sh                        # address, then thread
#     tools/sanitize.sh address                # AddressSanitizer and UndefinedBehaviorSanitizer: the tests of the bridge, of
#                                              # faults, lives and packs; a million damaged plans
#     tools/sanitize.sh thread                 # ThreadSanitizer: the tests that have threads. The player starts none
#     tools/sanitize.sh address tests/gpu/bridge -k lost
# Python, kp and drivers are as they are, without instruments. The bridge of .venv stays: the other ones lie in
# build/dev/sanitize, beside what .venv's was built of, and are put in its place by Python's sitecustomize. Safe to repeat;
# builds what has changed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=$root/.venv/bin/python
if [ $# -eq 0 ]; then
    "$0" address
    exec "$0" thread
fi
kind=$1
shift
case $kind in
    address) targets=(_bridge_address player_address) ;;
    thread) targets=(_bridge_thread) ;;
    *) echo "sanitize: $kind is neither address nor thread" >&2; exit 2 ;;
esac
build=$root/build/dev/sanitize/$kind

mkdir -p "$build/python"
started=$SECONDS
cmake --build build/dev --target "${targets[@]}" --parallel >"$build.log" 2>&1 \
    || { tail -n 30 "$build.log" >&2; exit 1; }
echo "sanitize: built for $kind in $((SECONDS - started)) s"

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

# pytest keeps what tests print, and loses it with its own process: reports go to files, of every process.
reports=$build/reports
rm -rf "$reports"
mkdir "$reports"
export PYTHONPATH="$build/python${PYTHONPATH:+:$PYTHONPATH}"
# libstdc++ too: the interceptor of exceptions looks for it when the process starts, and Python has none then.
preload=" $(c++ -print-file-name=libstdc++.so.6)"
if [ "$kind" = address ]; then
    # Containers that cross into modules without instruments look overrun; drivers and Python keep what they have to the end.
    export ASAN_OPTIONS=log_path=$reports/address:detect_leaks=0:detect_container_overflow=0:abort_on_error=1:handle_segv=0:allocator_may_return_null=1
    export UBSAN_OPTIONS=log_path=$reports/undefined:print_stacktrace=1
    export VKCONV_TEST_PLAYER="$build/player"
    preload=$(c++ -print-file-name=libasan.so)$preload
    tests=(tests/gpu/bridge tests/gpu/test_faults.py tests/gpu/test_session_lifetime.py tests/gpu/test_pack_player.py
        tests/gpu/test_player_faults.py)
    # What the memory of the process is held to (freed memory is kept, to find uses of it), and a test of release builds.
    without="leak or memory_behind or memory_comes_back or no_standard_streams"
else
    export TSAN_OPTIONS=log_path=$reports/thread:suppressions=$root/tools/thread.supp:die_after_fork=0:second_deadlock_stack=1
    # The layer's own threads and locks are not under test, and it has no instruments.
    export VKCONV_TEST_VALIDATION=0
    preload=$(c++ -print-file-name=libtsan.so)$preload
    tests=(tests/gpu/bridge/test_bridge_faults.py tests/gpu/bridge/test_bridge_lifetime.py tests/gpu/test_in_flight.py
        tests/gpu/test_session_inside.py tests/gpu/test_functional.py::test_threads_take_turns)
    # Forks while threads run, which ThreadSanitizer does not take; memory; and a stand-in that says that the device is
    # lost while lavapipe works on: what is let go then is still in use.
    without="leak or memory_comes_back or forked or failed_submission"
fi
LD_PRELOAD=$preload "$python" -c \
    "import vkconv.backend._bridge as b; assert b.__file__.startswith('$build'), b.__file__"
status=0
if [ $# -eq 0 ]; then
    if [ "$kind" = address ]; then
        (unset PYTHONPATH; "$python" tools/fuzz.py --player --seconds 300 --count 1000000) || status=1
    fi
    set -- "${tests[@]}"
fi
LD_PRELOAD=$preload "$python" -m pytest -q -p no:cacheprovider --durations=5 -k "not ($without)" "$@" || status=1
for report in "$reports"/*; do
    [ -s "$report" ] || continue
    status=1
    echo "sanitize: $report" >&2
    head -n 60 "$report" >&2
done
echo "sanitize: $kind took $((SECONDS - started)) s"
exit $status
