#!/bin/sh
# Installs a lock file into the image's environment: install_lock.sh LOCK
#
# torch's CPU build is not on the default package index. It comes from the build context `wheels` where that holds one,
# else from PyTorch's CPU index, whose address uv knows. The lock's hash decides in both cases.
set -eu

lock=$1
set -- --python /opt/venv --no-deps --require-hashes --find-links /wheels
if grep -q '^torch==.*+cpu' "$lock" && ! ls /wheels/torch-*+cpu-*.whl >/dev/null 2>&1; then
    set -- "$@" --torch-backend cpu
fi
exec uv pip install "$@" --requirements "$lock"
