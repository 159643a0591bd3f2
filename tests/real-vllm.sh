#!/usr/bin/env bash
# Holds predictions against two real vLLM engines on CPU, which connect to Envoy. Installs vLLM (6 GB, several minutes) at first.
# By hand or in a job that may take long: 10 minutes on two cores, 10 GB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${WARMPATH_CACHE:-$PWD/.envoy}
VLLM_PYTHON=$(tests/real-vllm/get.sh)
tests/parity/get.sh >/dev/null
python3 tests/real-vllm/model.py "$cache/vocabularies/qwen3" "$cache/vllm-model"
ENVOY_BIN=$(envoy/get-envoy.sh)
./wasm-build.sh --test >/dev/null
export VLLM_PYTHON VLLM_MODEL=$cache/vllm-model ENVOY_BIN WARMPATH_WASM=$PWD/warmpath-test.wasm
exec cargo test --package warmpath-tests --locked --test real_vllm -- --ignored --nocapture
