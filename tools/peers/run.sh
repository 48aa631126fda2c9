#!/bin/sh
# Measure vkconv beside other libraries in one run: run.sh HARNESS PYTHON [arguments of its run.py]
#
# HARNESS is the folder of the peers harness (run.py, worker.py, adapters/), PYTHON an interpreter that has both the
# peers and vkconv. The harness is copied, so that nothing is written into it. Where the interpreter has torchvision and
# timm, the networks of mobile.py are cases too.
set -e
here=$(cd "$(dirname "$0")" && pwd)
harness=$1 python=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$harness"/. "$work"
cp "$here/vkconv_.py" "$work/adapters"
cp "$here/mobile.py" "$work"
echo 'PEERS["vkconv"] = ("vkconv_", "vulkan", {})' >>"$work/adapters/__init__.py"
if "$python" -c 'import timm, torchvision' 2>/dev/null; then
    cat >>"$work/cases.py" <<'END'


_of_the_harness = all_cases


def all_cases():
    import mobile
    return _of_the_harness() + mobile.cases()
END
fi
cd "$work"
"$python" run.py "$@"
