#!/usr/bin/env bash
# What KV events cost, in one run: see tests/bench/src/bin/events.rs and index.rs. Wants two cores and quiet.
# usage: tests/bench-events.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${WARMPATH_CACHE:-$PWD/.envoy}
./wasm-build.sh >/dev/null
ENVOY_BIN=$(envoy/get-envoy.sh)
tests/parity/get.sh >/dev/null
export ENVOY_BIN WARMPATH_VOCABULARY=$cache/vocabularies/qwen3
cargo run --quiet --locked --release -p warmpath-bench --bin warmpath-bench-events -- "$PWD/warmpath.wasm" "${1:-5}"
cargo run --quiet --locked --release -p warmpath-bench --bin warmpath-bench-index
