# shellcheck shell=sh
# What the other scripts of this folder share: this host's distribution, becoming root, apt, and apt's own sources.

# os_release KEY: a value of /etc/os-release, or nothing
os_release() {
    (
        [ ! -r /etc/os-release ] || . /etc/os-release
        eval "echo \"\${$1:-}\""
    )
}

can_be_root() {
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n -- "$@"; fi
}

# apt_install PACKAGE…: quietly, unless it fails
apt_install() {
    log=$(mktemp)
    if as_root apt-get update > "$log" 2>&1 && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "$@" >> "$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

# apt_mirror SUITE: the address that this host's own sources give for a suite, whichever of apt's two formats they have
apt_mirror() {
    # apt tells of a source only after it has read that source once.
    [ -n "$(apt-get indextargets 2>/dev/null | head -n 1)" ] || as_root apt-get update >/dev/null 2>&1 || true
    # shellcheck disable=SC2016 # apt-get's own placeholders
    apt-get indextargets --format '$(RELEASE)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)' 2>/dev/null |
        awk -F '|' -v suite="$1" '($1 == suite || $2 == suite) && $3 == "main" { print $4; exit }'
}

# deb822_source MIRROR SUITE: a source, signed by Debian's own keyring
deb822_source() {
    [ -n "$1" ] || { echo "apt: no mirror known for $2" >&2; return 1; }
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$1" "$2" "$debian_keyring"
}

debian_keyring=/usr/share/keyrings/debian-archive-keyring.gpg
