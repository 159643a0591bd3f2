#!/usr/bin/env bash
# Formatting, lints, unit and property tests, and end-to-end tests on a real Envoy, from a clean clone with Rust and
# Python 3. Builds and installs what they need; leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'USAGE'
usage: tests/run.sh                          everything
       tests/run.sh --e2e [CARGO TEST ARG…]  end-to-end tests alone, such as: --e2e --test bad_input
       tests/run.sh --container              the quick end-to-end subset, with Envoy in a container
USAGE
}

what=all
case "${1:-}" in
  "") ;;
  --e2e) what=e2e; shift ;;
  --container) what=container; shift ;;
  -h|--help) usage; exit 0 ;;
  *) echo "tests/run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
esac

step() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }
target=${CARGO_TARGET_DIR:-target}

if [ $what = all ]; then
  step "formatting"
  cargo fmt --all --check
  step "lints"
  cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
fi

step "the filter, as a module for Envoy"
./wasm-build.sh --test
[ $what = container ] || ./wasm-build.sh --test --features test-trap --tokenizer tests/data/bytes --out warmpath-trap.wasm
step "the simulated pods"
cargo build --quiet --locked --package pod-sim
export POD_SIM=$PWD/$target/debug/pod-sim WARMPATH_WASM=$PWD/warmpath-test.wasm
[ "${target#/}" = "$target" ] || POD_SIM=$target/debug/pod-sim

if [ $what = container ]; then
  step "a container image with Envoy"
  # shellcheck source=tests/container.sh
  . tests/container.sh
else
  step "Envoy"
  ENVOY_BIN=$(envoy/get-envoy.sh)
  export ENVOY_BIN
  echo "$ENVOY_BIN"
fi

if [ $what = all ]; then
  step "what Hugging Face's tokenizers make of real vocabularies"
  WARMPATH_PARITY=$(tests/parity/get.sh)
  export WARMPATH_PARITY
  cargo test --package warmpath --locked --test parity -- --ignored --nocapture
  step "what NVIDIA Dynamo's simulated engines publish, and find in their caches"
  DYNAMO_PYTHON=$(tests/dynamo.sh)
  export DYNAMO_PYTHON
  cargo test --package warmpath-tests --locked --test dynamo_mocker -- --ignored --nocapture
fi

step "tests"
case $what in
  all) cargo test --workspace --locked --no-fail-fast ;;
  e2e) cargo test --package warmpath-tests --locked "$@" ;;
  container) cargo test --package warmpath-tests --locked --test skeleton --test pass_through --test image --test container -- --include-ignored ;;
esac
