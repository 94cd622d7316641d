#!/bin/sh
# Prints the base image to build on: the one that BASE_IMAGE names, else Debian's official one, else one built here.
#
# Where the official image can be had neither from this host nor from a registry, Debian's own packages make one
# (debootstrap, about 45 s). Talk goes to stderr. Exit codes: 0, or 3 when this host can do none of the three.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/docker/setup/apt.sh"

DOCKER=${DOCKER:-docker}
official=$(sed -n 's/^ARG BASE_IMAGE=//p' "$root/docker/Dockerfile")
suite=bookworm
built=grpo-stack/base:$suite
pull_limit_s=${PULL_LIMIT_S:-120}

say() { echo "base image: $*" >&2; }

cannot() {
    say "$*"
    exit 3
}

present() { "$DOCKER" image inspect "$1" >/dev/null 2>&1; }

install_debootstrap() {
    [ -x /usr/sbin/debootstrap ] && [ -r "$debian_keyring" ] && return 0
    command -v apt-get >/dev/null 2>&1 || return 1
    apt_install debootstrap debian-archive-keyring
}

# The image gets the sources that the host has for the same release, its security updates among them.
write_sources() {
    as_root rm -f "$1/etc/apt/sources.list"
    for name in $suite $suite-updates $suite-security; do
        mirror=$(apt_mirror "$name")
        [ -z "$mirror" ] || deb822_source "$mirror" "$name" > "$work/$name.sources"
        [ -z "$mirror" ] || as_root install -m 644 "$work/$name.sources" "$1/etc/apt/sources.list.d/"
    done
}

build() {
    next="load $official into Docker, or name another Debian 12 image with BASE_IMAGE"
    can_be_root || cannot "building one needs root or passwordless sudo; $next"
    install_debootstrap || cannot "building one needs the packages debootstrap and debian-archive-keyring; $next"
    mkdir -p "$root/.cache"
    work=$(mktemp -d "$root/.cache/base-image.XXXXXX")
    trap 'as_root rm -rf --one-file-system "$work"' EXIT
    mirror=$(apt_mirror $suite)
    # shellcheck disable=SC2086 # no mirror is no argument: debootstrap has a default
    as_root /usr/sbin/debootstrap --variant=minbase --keyring="$debian_keyring" $suite "$work/root" $mirror \
        > "$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; cannot "debootstrap failed; $next"; }
    [ -z "$mirror" ] || write_sources "$work/root"
    as_root find "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists" -type f -delete
    as_root tar --create --one-file-system --numeric-owner --directory "$work/root" . |
        "$DOCKER" import --change 'CMD ["bash"]' - $built >/dev/null
    present $built || cannot "docker import failed; $next"
}

if [ -n "${BASE_IMAGE:-}" ]; then
    echo "$BASE_IMAGE"
elif present "$official"; then
    echo "$official"
elif present $built; then
    echo $built
elif timeout "$pull_limit_s" "$DOCKER" pull --quiet "$official" >/dev/null; then
    echo "$official"
else
    say "$official cannot be pulled; building $built from Debian's packages (about 45 s)"
    build
    echo $built
fi
