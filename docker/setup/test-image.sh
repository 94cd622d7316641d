#!/bin/sh
# Runs pytest inside the image `test`, as hardened as a role is: test-image.sh PYTEST-ARGUMENT…
#
# The checkout's tests are mounted; the package is the one that the image carries. The caches are fresh, unnamed volumes,
# which go with the container.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
: "${DOCKER:?run docker/setup/settings.sh first}"
. "$root/docker/setup/tag.sh"

exec "$DOCKER" run --rm --init --read-only --network none --shm-size 1g \
    --cap-drop ALL --security-opt no-new-privileges \
    --tmpfs /tmp:exec,mode=1777 --tmpfs /home/stack:exec,mode=1777 \
    --volume /cache/huggingface --volume /cache/vllm --volume /cache/triton --volume /outputs \
    --volume "$root/tests:/checkout/tests:ro" --volume "$root/pyproject.toml:/checkout/pyproject.toml:ro" \
    --workdir /checkout --env VLLM_CPU_OMP_THREADS_BIND=nobind \
    "grpo-stack/test:$TAG" python -m pytest -p no:cacheprovider "$@"
