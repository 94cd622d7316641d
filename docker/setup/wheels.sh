#!/bin/sh
# Prints the folder of wheels that an image build prefers over the index: WHEELS_DIR if set; for ACCELERATOR=cpu a folder
# that pip is told of (find-links) and that holds the locked torch; else docker/wheels.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-python3}
. "$root/docker/setup/pip.sh"

[ -z "${WHEELS_DIR:-}" ] || { echo "$WHEELS_DIR"; exit 0; }
torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$root/docker/locks/${PINS:-trl-1.16}.${ACCELERATOR:-cpu}.txt")
case "$torch" in *+cpu) ;; *) echo "$root/docker/wheels"; exit 0 ;; esac
for folder in "$root/docker/wheels" $(pip_value find-links); do
    if ls "${folder#file://}/torch-$torch-cp311-"*.whl >/dev/null 2>&1; then
        echo "${folder#file://}"
        exit 0
    fi
done
echo "$root/docker/wheels"
