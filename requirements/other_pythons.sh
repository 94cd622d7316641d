#!/bin/sh
# Runs a pytest command line under each of the other Pythons that the helper supports and this host has.
#
#   UV=/path/to/uv requirements/other_pythons.sh VERSION… -- PYTEST-ARGUMENT…
#
# One after another, each into .cache/test-VERSION.log. Says which versions were found and which were not. Exit code: 0 if every
# found one passes.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
versions=
while [ "$1" != -- ]; do
    versions="$versions $1"
    shift
done
shift

# find_python VERSION: an interpreter that really runs (a pyenv shim may be there for one that is not active)
find_python() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if found=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) &&
            [ "$found" = "$1" ]; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

failed=
for version in $versions; do
    if ! python=$(find_python "$version"); then
        echo "Python $version: not on this host, skipped" >&2
        continue
    fi
    log="$root/.cache/test-$version.log"
    "$root/requirements/venv.sh" "$root/.cache/venv-$version" requirements/dev.txt "$python"
    if "$root/.cache/venv-$version/bin/python" -m pytest "$@" > "$log" 2>&1; then
        echo "Python $version: $(tail -n 1 "$log")" >&2
    else
        failed="$failed $version"
        cat "$log" >&2
    fi
done
[ -z "$failed" ] || { echo "failed under Python$failed; logs: .cache/test-VERSION.log" >&2; exit 1; }
