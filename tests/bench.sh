#!/usr/bin/env bash
# What Warmpath costs in a real Envoy, against a floor, in one run: see tests/bench/src/main.rs. Wants two cores and quiet.
set -euo pipefail
cd "$(dirname "$0")/.."
./wasm-build.sh >/dev/null
./wasm-build.sh --package warmpath-floor --out warmpath-floor.wasm >/dev/null
ENVOY_BIN=$(envoy/get-envoy.sh)
export ENVOY_BIN
tests/parity/get.sh >/dev/null
export WARMPATH_VOCABULARY=${WARMPATH_CACHE:-$PWD/.envoy}/vocabularies/qwen3
exec cargo run --quiet --locked --release -p warmpath-bench -- "$PWD/warmpath-floor.wasm" "$PWD/warmpath.wasm" "${1:-20}"
