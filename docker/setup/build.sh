#!/bin/sh
# Builds targets of docker/Dockerfile: build.sh TARGET…
#
# Takes its settings from the environment, as docker/setup/settings.sh prints them. Tags: grpo-stack/TARGET:TAG, where
# docker/setup/tag.sh makes TAG of ACCELERATOR and PINS.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
: "${DOCKER:?run docker/setup/settings.sh first}"
. "$root/docker/setup/tag.sh"

for target in "$@"; do
    tag="grpo-stack/$target:$TAG"
    echo "building $tag on $BASE_IMAGE" >&2
    "$DOCKER" buildx build --load --progress "${BUILDKIT_PROGRESS:-auto}" \
        --file "$root/docker/Dockerfile" --target "$target" --tag "$tag" \
        --build-arg "ACCELERATOR=$ACCELERATOR" --build-arg "PINS=$PINS" \
        --build-arg "BASE_IMAGE=$BASE_IMAGE" --build-arg "APP_UID=${APP_UID:-10001}" \
        --build-arg "INDEX_URL=${INDEX_URL:-}" --build-arg "EXTRA_INDEX_URL=${EXTRA_INDEX_URL:-}" \
        --build-context "wheels=$WHEELS_DIR" --secret "id=ca_bundle,src=$CA_BUNDLE" \
        "$root"
done
