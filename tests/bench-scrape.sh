#!/usr/bin/env bash
# What asking 64 engines for their load costs: see tests/bench/src/bin/scrape.rs.
# Measured on a two-core virtual machine: 1.9 % of a core with answers of 51 KB (a busy vLLM 0.32 with LoRA adapters).
# usage: tests/bench-scrape.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "$0")/.."
./wasm-build.sh >/dev/null
ENVOY_BIN=$(envoy/get-envoy.sh)
export ENVOY_BIN
exec cargo run --quiet --locked --release -p warmpath-bench --bin warmpath-bench-scrape -- "$PWD/warmpath.wasm" "${1:-3}"
