#!/bin/sh
# Prints what an image build on this host needs, as `export` lines; `make` and the compose files read them.
#
#   settings="$(docker/setup/settings.sh)" && eval "$settings"
#
# Each line is one setting. A value in the environment is kept; else it is found as follows.
#
#   ACCELERATOR      cuda with an NVIDIA device on this host, else cpu
#   DOCKER           a docker client that has Compose and buildx; its folder of one comes first on PATH
#   BASE_IMAGE       docker/setup/base-image.sh
#   WHEELS_DIR       for cpu: a folder of pip's find-links that holds the locked torch wheel; else docker/wheels
#   CA_BUNDLE        SSL_CERT_FILE, PIP_CERT or REQUESTS_CA_BUNDLE; else /dev/null, which stands for none
#   INDEX_URL        pip's index-url; else empty: the installer's default
#   EXTRA_INDEX_URL  empty: none
#   APP_UID          10001
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
# In a shell that has read these settings the folder of the link below comes first, and the link must not lead to itself.
PATH=${PATH#"$root/.cache/bin:"}
PYTHON=${PYTHON:-python3}
PINS=${PINS:-trl-1.16}
. "$root/docker/setup/pip.sh"

# setting NAME VALUE: an export line that any shell reads back exactly
setting() { printf "export %s='%s'\n" "$1" "$(printf '%s' "$2" | sed "s/'/'\\\\''/g")"; }

accelerator() {
    if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then echo cuda; else echo cpu; fi
}

ca_bundle() {
    for file in "${SSL_CERT_FILE:-}" "${PIP_CERT:-}" "${REQUESTS_CA_BUNDLE:-}"; do
        if [ -s "$file" ]; then
            echo "$file"
            return
        fi
    done
    echo /dev/null
}

# Compose takes a relative path as relative to its own file, so that all of them are absolute.
absolute() {
    case "$1" in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

# Build arguments stay in the build's history.
refuse_credentials() {
    case "$2" in
        *://*@*)
            echo "$1: the address holds a user name or password, which the image's history would keep;" \
                "name an index without them, or put the wheels into a folder and set WHEELS_DIR" >&2
            exit 2 ;;
    esac
}

: "${ACCELERATOR:=$(accelerator)}"
export ACCELERATOR PINS PYTHON
: "${WHEELS_DIR:=$("$root/docker/setup/wheels.sh")}"
: "${CA_BUNDLE:=$(ca_bundle)}"
: "${INDEX_URL:=$(pip_value index-url)}"
: "${EXTRA_INDEX_URL:=}"
refuse_credentials INDEX_URL "$INDEX_URL"
refuse_credentials EXTRA_INDEX_URL "$EXTRA_INDEX_URL"

DOCKER=$("$root/docker/setup/engine.sh")
export DOCKER
BASE_IMAGE=$("$root/docker/setup/base-image.sh")
mkdir -p "$root/.cache/bin"
ln -sfn "$DOCKER" "$root/.cache/bin/docker"

setting ACCELERATOR "$ACCELERATOR"
setting DOCKER "$DOCKER"
setting BASE_IMAGE "$BASE_IMAGE"
setting WHEELS_DIR "$(absolute "$WHEELS_DIR")"
setting CA_BUNDLE "$(absolute "$CA_BUNDLE")"
setting INDEX_URL "$INDEX_URL"
setting EXTRA_INDEX_URL "$EXTRA_INDEX_URL"
setting APP_UID "${APP_UID:-10001}"
setting PATH "$root/.cache/bin:$PATH"
