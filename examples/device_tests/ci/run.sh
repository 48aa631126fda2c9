#!/bin/sh
# What a CI job runs here: the tests, then times beside baseline.json. Without that file it leaves what it measured in
# its place, to be committed: only times of the same kind of runner compare.
set -eu
cd "$(dirname "$0")/.."
pytest --vk-require --junitxml tests.xml
vkconv bench --suite calls.txt --min-time "${MIN_TIME:-0.2}" -o now.json -o now.html
if [ -e baseline.json ]; then
    vkconv compare baseline.json now.json --changed --fail-over "${FAIL_OVER:-1.5}"
else
    cp now.json baseline.json
fi
