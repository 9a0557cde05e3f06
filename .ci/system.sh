#!/usr/bin/env bash
# What the Makefile needs from the system, found or installed with Debian's package manager.
#   system.sh python    print a Python (3.10 or newer) that can make virtual environments
#   system.sh browser   make sure that a Chromium is there, and print its path
set -euo pipefail

apt_install() { # PACKAGE
    local as_root=()
    if ! command -v apt-get >/dev/null; then
        echo "$1 is missing, and this system has no apt-get: install it by hand, then try again." >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            echo "$1 is missing: run 'sudo apt-get install $1', then try again." >&2
            exit 1
        fi
        as_root=(sudo -n)
    fi
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$1" >&2
}

is_suitable() { # PYTHON
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() {
    local name
    for name in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if is_suitable "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

find_browser() {
    local name
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome; do
        if [ -n "$name" ] && command -v "$name"; then
            return
        fi
    done
    return 1
}

case "${1:-}" in
    python)
        find_python || { apt_install python3-venv && find_python; } || {
            echo "Python 3.10 or newer is needed; this system has $(python3 --version 2>&1)." >&2
            exit 1
        }
        ;;
    browser) find_browser || { apt_install chromium && find_browser; } ;;
    *)
        echo "usage: system.sh python|browser" >&2
        exit 2
        ;;
esac
