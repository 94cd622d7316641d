#!/bin/sh
# Compiles every lock file of this project from its .in file and pyproject.toml. Called by `make lock`.
#
#   UV          the uv to use (default: uv)
#   WHEELS_DIR  a folder that holds torch's CPU wheel; without one, uv asks PyTorch's own CPU index
#   UPGRADE=1   take newer releases; otherwise versions stay as they are locked
#
# Index addresses stay out of the files: the one who installs chooses the index, the hashes hold either way.
set -eu
cd "$(dirname "$0")/.."

UV=${UV:-uv}
WHEELS_DIR=${WHEELS_DIR:-docker/wheels}
export UV_CUSTOM_COMPILE_COMMAND="make lock"

compile() {
    output=$1
    shift
    "$UV" pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
        ${UPGRADE:+--upgrade} --output-file "$output" "$@"
    echo "$output: $(grep -c '^[A-Za-z0-9]' "$output") packages" >&2
}

# The names of the packages in lock files, a line each.
packages() { sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' "$@"; }

# The helper runs on the user's Python, so one file serves every version and platform.
on_the_host="--universal --python-version 3.10"
# The containers bring their own: Debian 12's Python 3.11. manylinux_2_28 is what vLLM's wheels ask for.
in_the_image="--python-version 3.11 --python-platform x86_64-manylinux_2_28"

# shellcheck disable=SC2086 # the two are lists of words
{
    compile requirements/helper.txt $on_the_host pyproject.toml
    compile requirements/dev.txt $on_the_host pyproject.toml requirements/dev.in
    compile docker/locks/build.txt $in_the_image docker/locks/build.in

    if ls "$WHEELS_DIR"/torch-*+cpu-*.whl >/dev/null 2>&1; then
        cpu_torch="--find-links $WHEELS_DIR"
    else
        cpu_torch="--torch-backend cpu"
    fi
    for pins in trl-1.16 trl-1.13; do
        compile "docker/locks/$pins.cpu.txt" $in_the_image --excludes docker/locks/cpu.excludes.txt $cpu_torch \
            "docker/locks/$pins.cpu.in" pyproject.toml
        compile "docker/locks/$pins.cuda.txt" $in_the_image "docker/locks/$pins.cuda.in" pyproject.toml
    done
    # Without what both CUDA sets hold: it is installed beside either.
    held=$(mktemp)
    packages docker/locks/trl-1.13.cuda.txt docker/locks/trl-1.16.cuda.txt | sort | uniq --repeated > "$held"
    DS_BUILD_OPS=0 compile docker/locks/deepspeed.txt $in_the_image --excludes "$held" docker/locks/deepspeed.in
    rm "$held"
    compile docker/locks/test.txt $in_the_image --constraints "docker/locks/trl-1.16.cpu.txt" docker/locks/test.in
}
