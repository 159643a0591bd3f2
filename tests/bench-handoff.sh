#!/usr/bin/env bash
# What prefill and decode at two pods take beyond their legs: see tests/bench/src/bin/handoff.rs. Wants two cores and quiet.
# usage: tests/bench-handoff.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
./wasm-build.sh >/dev/null
ENVOY_BIN=$(envoy/get-envoy.sh)
export ENVOY_BIN
exec cargo run --quiet --locked --release -p warmpath-bench --bin warmpath-bench-handoff -- "$PWD/warmpath.wasm" "${1:-20}"
