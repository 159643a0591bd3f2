#!/usr/bin/env bash
# Prefill and decode by two real vLLM engines on CPU that hand over KV by NIXL, through Envoy; and the bodies that Warmpath sends by NIXL and
# Mooncake, read by vLLM's own classes. Installs vLLM (6 GB, several minutes) and NIXL at first.
# By hand or in a job that may take long: 10 minutes on two cores, 10 GB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${WARMPATH_CACHE:-$PWD/.envoy}
VLLM_PYTHON=$(tests/real-vllm/get.sh)
NIXL_SITE=$(tests/real-vllm/nixl.sh)
tests/parity/get.sh >/dev/null
python3 tests/real-vllm/model.py "$cache/vocabularies/qwen3" "$cache/vllm-model"
"$VLLM_PYTHON" tests/real-vllm/weights.py "$cache/vllm-model" "$cache/vllm-weights"
ENVOY_BIN=$(envoy/get-envoy.sh)
./wasm-build.sh --test >/dev/null
cargo build --quiet --locked --package pod-sim
export VLLM_PYTHON NIXL_SITE VLLM_MODEL=$cache/vllm-weights ENVOY_BIN WARMPATH_WASM=$PWD/warmpath-test.wasm
exec cargo test --package warmpath-tests --locked --test real_nixl -- --ignored --nocapture --test-threads 1
