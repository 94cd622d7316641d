#!/bin/sh
# Removes what this project made: containers, networks and volumes; with the argument `images` its images too.
#
# They are found by the label that Compose gives to this project's things and by this project's image names, so nothing
# else on the host is touched. Outputs stay.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
DOCKER=${DOCKER:-docker}
label="label=com.docker.compose.project=${PROJECT:-grpo-stack}"

# remove WHAT NAMES DOCKER-COMMAND…
remove() {
    what=$1
    found=$2
    shift 2
    for name in $found; do
        "$DOCKER" "$@" "$name" >/dev/null && echo "removed $what $name"
    done
}

if "$DOCKER" version >/dev/null 2>&1; then
    remove container "$("$DOCKER" ps --all --quiet --filter "$label")" rm --force
    remove network "$("$DOCKER" network ls --quiet --filter "$label")" network rm
    remove volume "$("$DOCKER" volume ls --quiet --filter "$label")" volume rm
    if [ "${1:-}" = images ]; then
        remove image "$("$DOCKER" image ls --format '{{.Repository}}:{{.Tag}}' --filter 'reference=grpo-stack/*')" image rm
    fi
else
    echo "no Docker daemon answers: containers, networks and volumes are left as they are" >&2
fi

cd "$root"
for folder in dist .pytest_cache .mypy_cache .ruff_cache .hypothesis; do
    [ ! -e "$folder" ] || { rm -rf "$folder" && echo "removed $folder"; }
done
