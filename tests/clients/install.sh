# shellcheck shell=bash
# Sourced by the drivers: what a smoke needs, installed only where it is missing.

# need_command COMMAND DEBIAN-PACKAGE
need_command() {
    command -v "$1" > /dev/null || install_package "$2" "$1"
}

# need_file PATH DEBIAN-PACKAGE
need_file() {
    [ -e "$1" ] || install_package "$2" "$1"
}

install_package() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
        echo "error: $2 is missing; install Debian's package $1 (or its like)" >&2
        exit 1
    fi
    echo "installing $1"
    if [ -z "${apt_lists_are_new:-}" ]; then
        apt-get update -qq
        apt_lists_are_new=1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" > /dev/null
}

# need_python BUILD-DIRECTORY: an environment with the pinned clients in BUILD-DIRECTORY/venv.
need_python() {
    local venv=$1/venv list
    list=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements.txt
    if ! cmp -s "$list" "$venv/requirements.txt"; then
        need_command python3 python3
        mkdir -p "$1"
        rm -rf "$venv"
        if ! python3 -m venv "$venv" 2> /dev/null; then
            install_package python3-venv "python3 -m venv"
            rm -rf "$venv"
            python3 -m venv "$venv"
        fi
        "$venv/bin/pip" install -q --disable-pip-version-check -r "$list"
        cp "$list" "$venv/requirements.txt"
    fi
}
