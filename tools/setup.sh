#!/usr/bin/env bash
# Makes .venv with everything that running, testing and checking vkconv needs. Safe to repeat; does nothing when up to date.
# Environment: PYTHON (interpreter for a new .venv, default python3), KP_SDIST (kp's source archive, for work offline).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/.venv
stamp=$venv/.vkconv-setup
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# What the installation is made from, and for which copy of the repository (an editable installation holds its path and
# which packages there are).
digest() {
    local inputs=(native cmake pyproject.toml CMakeLists.txt tools/setup.sh tools/requirements-*.lock)
    { printf '%s\n' "$PWD"; find vkconv -type d ! -name __pycache__ | LC_ALL=C sort
      find "${inputs[@]}" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum; } \
        | sha256sum | cut -d' ' -f1
}
key=$(digest)
if [ -x "$venv/bin/vkconv" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
    exit 0
fi

# --- Debian packages ------------------------------------------------------------------------------------------------
needed=(libvulkan1 libvulkan-dev libfmt-dev cmake g++ make mesa-vulkan-drivers vulkan-validationlayers
    chromium)   # opens the HTML report in its tests
python=${PYTHON:-python3}
command -v "$python" >/dev/null || needed+=(python3)
if command -v "$python" >/dev/null; then
    "$python" -c 'import ensurepip' 2>/dev/null || needed+=(python3-venv)
    "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || needed+=(python3-dev)
else
    needed+=(python3-venv python3-dev)
fi
missing=()
if command -v dpkg-query >/dev/null; then
    for package in "${needed[@]}"; do
        case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
            *" installed") ;;
            *) missing+=("$package") ;;
        esac
    done
else
    say "no dpkg here: make sure that these are installed: ${needed[*]}"
fi
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || fail "missing Debian packages; run: sudo apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "$("$python" --version) is too old: vkconv needs Python 3.11 or newer (set PYTHON)"

# --- virtual environment --------------------------------------------------------------------------------------------
[ -x "$venv/bin/python" ] || { say "creating .venv with $("$python" --version)"; "$python" -m venv "$venv"; }
rm -f "$stamp"
# shellcheck source=/dev/null
. "$venv/bin/activate"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# CI takes exactly what the lock file lists, where all of it is to be had; elsewhere pip takes what fits. Bytecode is made of
# what is imported, when it is: most is not.
lock=tools/requirements-$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])').lock
if [ "${CI:-}" = true ] && [ -f "$lock" ]; then
    say "installing what $lock lists"
    pip install -q --no-compile --no-deps --require-hashes -r "$lock" \
        || say "NOT everything that $lock lists is to be had here with these hashes: going on with what fits"
fi
build_requires=$(python - <<'PY'
import tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join(tomllib.load(file)["build-system"]["requires"]))
PY
)
say "installing the build requirements"
mapfile -t build_requires <<<"$build_requires"
pip install -q --no-compile "${build_requires[@]}"

# --- vkconv -----------------------------------------------------------------------------------------------------------
say "building and installing vkconv"
pip install -q --no-compile --no-build-isolation -e '.[dev]' --config-settings=build-dir=build/dev
# rapidocr carries the models that the main job runs; its own dependencies include OpenCV, which nothing here needs.
pip install -q --no-compile --no-deps rapidocr-onnxruntime==1.4.4
# These carry trained .tflite models; of what they depend on, nothing is needed to read them.
pip install -q --no-compile --no-deps mediapipe==0.10.14 pymicro-wakeword==2.5.0 wyoming-openwakeword==1.8.2

printf '%s\n' "$key" >"$stamp"
say "done: . .venv/bin/activate"
