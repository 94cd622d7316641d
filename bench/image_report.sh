#!/bin/bash
# Measures the images: size, what fills them, build times. Prints Markdown; docs/images.md holds the last report.
#
#   bench/image_report.sh [cold]
#
# Takes its settings from the environment, as docker/setup/settings.sh prints them. `cold` also builds once without any
# cached layer (the download caches stay), which takes minutes. The build after a change of the source runs on a copy.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
: "${DOCKER:?run docker/setup/settings.sh first}"
image="grpo-stack/trainer:$ACCELERATOR"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -a "$root"/{docker,grpo_stack,pyproject.toml,README.md,LICENSE,.dockerignore} "$copy"

# build [OPTION…]: seconds that building the trainer from the copy takes
build() {
    local start=$EPOCHREALTIME
    "$DOCKER" buildx build --load --quiet --file "$copy/docker/Dockerfile" --target trainer "$@" \
        --build-arg "ACCELERATOR=$ACCELERATOR" --build-arg "BASE_IMAGE=$BASE_IMAGE" \
        --build-arg "INDEX_URL=$INDEX_URL" --build-arg "EXTRA_INDEX_URL=$EXTRA_INDEX_URL" \
        --build-context "wheels=$WHEELS_DIR" --secret "id=ca_bundle,src=$CA_BUNDLE" "$copy" >/dev/null
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }'
}

row() { printf '| %s | %s |\n' "$1" "$2"; }

echo "## $ACCELERATOR, $(nproc) cores, $(date +%Y-%m-%d)"
echo
row "What" "Figure"
row "---" "---"
[ "${1:-}" != cold ] || row "build without a cached layer, packages downloaded before" "$(build --no-cache)"
build >/dev/null
row "build with nothing changed" "$(build)"
echo "# changed at $EPOCHREALTIME" >> "$copy/grpo_stack/__init__.py"
row "build after a change of the source" "$(build)"
row "size" "$("$DOCKER" image inspect --format '{{.Size}}' "$image" | awk '{ printf "%.2f GB", $1 / 1e9 }')"
row "layers (MB)" "$("$DOCKER" history --human=false --format '{{.Size}}' "$image" |
    awk '$1 >= 1e6 { printf "%s%.0f", n++ ? ", " : "", $1 / 1e6 }')"
row "packages" "$("$DOCKER" run --rm "$image" python -c 'from importlib.metadata import distributions as d; print(len(list(d())))')"
row "largest (MB)" "$("$DOCKER" run --rm --workdir /opt/venv/lib/python3.11/site-packages "$image" \
    sh -c 'du -sm -- * | sort -rn | head -n 10' | awk '{ printf "%s%s %s", n++ ? ", " : "", $2, $1 }')"

# seconds MODULE: what importing it takes of the imports below, once its files are cached
seconds() { awk -F'|' -v m="$1" '{ gsub(/ /, "", $3) } $3 == m { printf "%.1f s", $2 / 1e6 }' "$copy/imports"; }

for _ in uncached cached; do
    "$DOCKER" run --rm "$image" python -X importtime -c 'import trl.trainer.grpo_trainer' >/dev/null 2>"$copy/imports"
done
row "importing TRL's GRPO trainer" "$(seconds trl.trainer.grpo_trainer)"
row "PEFT in that" "$(seconds peft)"
row "bitsandbytes in that" "$(seconds bitsandbytes)"
