#!/usr/bin/env bash
# usage: venv.sh DIR PACKAGE==VERSION…
# Makes a private Python environment in DIR that has these packages, unless it is there already.
set -euo pipefail
dir=$1; shift
[ "$(cat "$dir/.packages" 2>/dev/null)" = "$*" ] && exit
echo "installing $* (PyPI) in $dir ..." >&2
rm -rf "$dir"
# Debian and its kin ship Python without the part of venv that brings pip.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  command -v apt-get >/dev/null || { echo "venv.sh: this Python has no venv; install that module" >&2; exit 1; }
  echo "installing Debian's python3-venv ..." >&2
  sudo=(); [ "$(id -u)" = 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq >&2
  "${sudo[@]}" apt-get install -y -qq python3-venv >&2
fi
python3 -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2
echo "$*" > "$dir/.packages"
