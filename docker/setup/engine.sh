#!/bin/sh
# Makes a Docker Engine usable, or says exactly what is missing.
#
#   engine.sh          check; install and start what is missing; print the path of a docker client that has Compose
#   engine.sh stop     stop the daemon if this script started it
#
#   INSTALL_DOCKER=0   never install anything
#
# Needs Engine 25 (healthcheck.start_interval), Compose 2.24 (the same, in the file) and buildx (named build contexts).
# Results go to stdout, talk goes to stderr. Exit codes: 0 usable, 3 this host cannot run it.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/docker/setup/apt.sh"

state="$root/.cache/engine"
engine_needed=25
compose_needed=2.24
start_limit_s=60
# Where a host says that systemd runs it, and that a daemon runs or is starting.
systemd=${SYSTEMD_FOLDER:-/run/systemd/system}
running=${DOCKER_PIDFILE:-/run/docker.pid}

say() { echo "docker: $*" >&2; }

cannot() {
    say "$*"
    exit 3
}

# at_least FOUND NEEDED: whether a dotted version is at least another one
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# A client without plugins may come first on PATH: print the first one that has a new enough Compose, and buildx.
find_client() {
    for folder in $(echo "$PATH" | tr ':' ' '); do
        client=$folder/docker
        [ -x "$client" ] || continue
        compose=$("$client" compose version --short 2>/dev/null) || continue
        at_least "${compose#v}" "$compose_needed" || continue
        "$client" buildx version >/dev/null 2>&1 || continue
        echo "$client"
        return 0
    done
    return 1
}

missing_clients() {
    if ! command -v docker >/dev/null 2>&1; then
        echo "no docker client on PATH"
    elif ! compose=$(docker compose version --short 2>/dev/null); then
        echo "$(command -v docker) has no Compose plugin"
    elif ! at_least "${compose#v}" "$compose_needed"; then
        echo "Docker Compose is ${compose#v}, $compose_needed or newer is needed"
    else
        echo "$(command -v docker) has no buildx plugin"
    fi
}

# On Debian 12 the distribution's own Engine is too old, so its packages, and they alone, come from Debian 13. A host that
# already has a source for Debian 13 keeps its own rules for all other packages.
prefer_trixie() {
    if [ -z "$(apt_mirror trixie)" ]; then
        deb822_source "$(apt_mirror bookworm)" trixie > "$state/trixie.sources" ||
            cannot "apt's sources name no mirror of Debian 12, so Debian 13's cannot be derived; $guide"
        printf 'Package: *\nPin: release n=trixie\nPin-Priority: -10\n\n' > "$state/trixie.preferences"
        as_root install -m 644 "$state/trixie.sources" /etc/apt/sources.list.d/grpo-stack-trixie.sources
    elif [ ! -e /etc/apt/sources.list.d/grpo-stack-trixie.sources ]; then
        : > "$state/trixie.preferences"
    else
        return 0
    fi
    printf 'Package: docker.io docker-cli docker-compose docker-buildx\nPin: release n=trixie\nPin-Priority: 600\n' \
        >> "$state/trixie.preferences"
    as_root install -m 644 "$state/trixie.preferences" /etc/apt/preferences.d/grpo-stack-trixie
}

# The packages that bring the client, and the Engine unless there is one, which is left as it is.
packages_here() {
    case "$(os_release ID):$(os_release VERSION_CODENAME)" in
        debian:bookworm) prefer_trixie; packages="docker-cli docker-compose docker-buildx" ;;
        debian:*) packages="docker-cli docker-compose docker-buildx" ;;
        ubuntu:*) packages="docker-compose-v2 docker-buildx" ;;
    esac
    command -v dockerd >/dev/null 2>&1 || packages="docker.io $packages iptables"
}

install_engine() {
    guide="install Docker Engine $engine_needed or newer with Compose and buildx: https://docs.docker.com/engine/install"
    [ "${INSTALL_DOCKER:-1}" != 0 ] || cannot "$1, and INSTALL_DOCKER=0 forbids installing it; $guide"
    case "$(os_release ID)" in
        debian|ubuntu) ;;
        *) cannot "$1; $guide" ;;
    esac
    can_be_root || cannot "$1; run this once as root or with passwordless sudo, or $guide"
    say "$1; installing it from the distribution's packages (INSTALL_DOCKER=0 forbids that)"
    packages_here
    # shellcheck disable=SC2086 # a list of words
    apt_install $packages || cannot "apt-get could not install $packages; its messages are above; $guide"
}

daemon_answers() {
    timeout 20 "$1" version --format '{{.Server.Version}}' 2>"$state/last-answer"
}

forbidden() {
    grep -qi 'permission denied' "$state/last-answer"
}

start_daemon() {
    command -v dockerd >/dev/null 2>&1 || cannot "no daemon answers at ${DOCKER_HOST:-the default socket}, and none is installed"
    [ -z "${DOCKER_HOST:-}" ] || cannot "no daemon answers at DOCKER_HOST=$DOCKER_HOST; start it there, or unset DOCKER_HOST"
    if [ -r "$running" ] && [ -d "/proc/$(cat "$running")" ]; then
        say "the daemon is starting"
        return 0
    fi
    can_be_root || cannot "the daemon does not run; start it with: sudo systemctl start docker"
    if [ -d "$systemd" ]; then
        say "the daemon does not run; starting it with systemctl"
        as_root systemctl start docker || cannot "systemctl start docker failed; look at: journalctl -u docker"
    else
        say "the daemon does not run; starting dockerd, log in $state/dockerd.log"
        # shellcheck disable=SC2024 # the log belongs to the caller, on purpose
        # The redirections come first and for good: those of a function call would keep the caller's pipe open in this
        # subshell, and whoever reads this script's output would wait for as long as the daemon lives.
        (
            exec > "$state/dockerd.log" 2>&1 < /dev/null
            as_root setsid dockerd --pidfile "$state/dockerd.pid"
        ) &
        touch "$state/started-here"
    fi
}

wait_for_daemon() {
    deadline=$(($(date +%s) + start_limit_s))
    until daemon_answers "$1" >/dev/null; do
        forbidden && return 0
        if [ "$(date +%s)" -ge "$deadline" ]; then
            [ ! -f "$state/dockerd.log" ] || tail -n 5 "$state/dockerd.log" >&2
            cannot "the daemon did not answer within $start_limit_s s"
        fi
        sleep 1
    done
}

ensure() {
    mkdir -p "$state"
    client=$(find_client) || {
        install_engine "$(missing_clients)"
        client=$(find_client) || cannot "$(missing_clients), also after the installation"
    }
    if ! daemon_answers "$client" >/dev/null && ! forbidden; then
        command -v dockerd >/dev/null 2>&1 || install_engine "there is a docker client but no Engine"
        start_daemon
        wait_for_daemon "$client"
    fi
    engine=$(daemon_answers "$client") || cannot "the daemon runs, but $(id -un) may not use it; run: \
sudo usermod -aG docker $(id -un), then log in again"
    at_least "$engine" "$engine_needed" || cannot "the Engine is $engine, $engine_needed or newer is needed; upgrade it, \
see https://docs.docker.com/engine/install"
    echo "$client"
}

stop() {
    [ -e "$state/started-here" ] || return 0
    if [ -s "$state/dockerd.pid" ]; then
        pid=$(cat "$state/dockerd.pid")
        say "stopping the daemon that was started here (process $pid)"
        as_root kill "$pid" 2>/dev/null || true
        deadline=$(($(date +%s) + start_limit_s))
        while [ -e "/proc/$pid" ] && [ "$(date +%s)" -lt "$deadline" ]; do sleep 1; done
    fi
    rm -f "$state/started-here"
}

case "${1:-ensure}" in
    ensure) ensure ;;
    stop) stop ;;
    *) echo "usage: engine.sh [ensure|stop]" >&2; exit 2 ;;
esac
