#!/bin/sh
# Measure vkconv beside other libraries in one run: run.sh HARNESS PYTHON [arguments of its run.py]
#
# HARNESS is the folder of the peers harness (run.py, worker.py, adapters/), PYTHON an interpreter that has both the
# peers and vkconv. The harness is copied, so that nothing is written into it.
set -e
here=$(cd "$(dirname "$0")" && pwd)
harness=$1 python=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$harness"/. "$work"
cp "$here/vkconv_.py" "$work/adapters"
echo 'PEERS["vkconv"] = ("vkconv_", "vulkan", {})' >>"$work/adapters/__init__.py"
cd "$work"
"$python" run.py "$@"
