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
  envoy/venv.sh "$cache/dynamo-python" ai-dynamo-runtime==1.6.1 aiohttp==3.14.5 kubernetes==32.0.1 msgspec==0.23.0 \
    prometheus-client==0.26.0 pyzmq==27.3.0 redis==8.1.0 tqdm==4.70.1 transformers==5.24.0 zstandard==0.25.0
  export DYNAMO_PYTHON=$cache/dynamo-python/bin/python
  # It asks for packages that only engines need.
  "$DYNAMO_PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps ai-dynamo==1.6.1
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
