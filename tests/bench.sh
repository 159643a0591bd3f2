#!/usr/bin/env bash
# What Warmpath costs in a real Envoy, against a floor, in one run: see tests/bench/src/main.rs. Wants two cores and quiet.
# usage: tests/bench.sh [--dynamo] [ROUNDS [SHAPE…]]
#   --dynamo  beside NVIDIA Dynamo's frontend, which is installed for it (PyPI, 0.7 GB)
#   SHAPE     quarter: a quarter of each prompt is new; cold: all of it; conversation: 20 turns that grow to 400 KB
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${WARMPATH_CACHE:-$PWD/.envoy}
if [ "${1:-}" = --dynamo ]; then
  shift
  DYNAMO_PYTHON=$(tests/dynamo.sh)
  export DYNAMO_PYTHON
fi
rounds=${1:-20}
[ $# = 0 ] || shift
[ $# != 0 ] || set -- quarter cold conversation
./wasm-build.sh >/dev/null
./wasm-build.sh --package warmpath-floor --out warmpath-floor.wasm >/dev/null
ENVOY_BIN=$(envoy/get-envoy.sh)
export ENVOY_BIN
tests/parity/get.sh >/dev/null
export WARMPATH_VOCABULARY=$cache/vocabularies/qwen3
exec cargo run --quiet --locked --release -p warmpath-bench -- "$PWD/warmpath-floor.wasm" "$PWD/warmpath.wasm" "$rounds" "$@"
