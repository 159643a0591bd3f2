#!/usr/bin/env bash
# Formatting, lints, unit and property tests, and end-to-end tests on a real Envoy, from a clean clone with Rust and
# Python 3. Builds and installs what they need; leaves nothing running.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t versions < <(grep -v '^#' envoy/versions)
default=${versions[-1]}

usage() {
  cat <<USAGE
usage: tests/run.sh                               everything on Envoy $default, and a quick end-to-end subset on the other versions
       tests/run.sh --versions [VERSION…] [ARG…]  all end-to-end tests on each version of Envoy in envoy/versions, or on these
       tests/run.sh --container [--quick] [ARG…]  all end-to-end tests with Envoy in a container, or the quick subset
       tests/run.sh --e2e [ARG…]                  all end-to-end tests
ARGs go to cargo test, such as: --e2e --test bad_input
Environment: ENVOY_VERSION names a version other than $default; ENVOY a binary of your own, for --e2e and for everything.
USAGE
}

# What is run where all end-to-end tests would take too long.
quick=(--test skeleton --test pass_through --test trap)

what=all args=()
case "${1:-}" in
  "") ;;
  --e2e) what=e2e; shift ;;
  --versions)
    what=versions; shift
    [[ "${1:--}" = -* ]] || versions=()
    while [[ "${1:--}" != -* ]]; do versions+=("$1"); shift; done
    ;;
  --container)
    what=container; shift
    if [ "${1:-}" = --quick ]; then shift; args=("${quick[@]}"); fi
    ;;
  -h|--help) usage; exit 0 ;;
  *) echo "tests/run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
esac
args+=("$@")

step() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }
target=${CARGO_TARGET_DIR:-target}
failed=0 table=()

# Runs tests and notes how they went; when some fail, what comes next is run all the same.
run() { # WHERE CARGO-TEST-ARG…
  local where=$1 start=$SECONDS log; shift
  log=$(mktemp)
  step "tests on $where"
  cargo test --locked --no-fail-fast "$@" 2>&1 | tee "$log" || failed=1
  table+=("$where|$(awk '/^test result:/ { passed += $4; failed += $6 } /NOT ON ENVOY/ { parts += 1 } END { printf "%d|%d|%d", passed, failed, parts }' "$log")|$((SECONDS - start))")
  rm "$log"
}

# The same on another version than the default.
run_version() { # VERSION CARGO-TEST-ARG…
  local version=$1; shift
  if ENVOY_BIN=$(ENVOY='' ENVOY_VERSION=$version envoy/get-envoy.sh) && [[ $("$ENVOY_BIN" --version) = */$version/* ]]; then
    ENVOY_BIN=$ENVOY_BIN run "Envoy $version" "$@"
  else
    echo "tests/run.sh: no Envoy $version to be had" >&2
    failed=1
    table+=("Envoy $version|none|none|none|0")
  fi
}

if [ $what = all ]; then
  step "formatting"
  cargo fmt --all --check
  step "lints"
  cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
  step "manifests"
  tests/manifests.sh --self-test
  # AI Gateway's kinds are in no package: give its definitions by --crds.
  tests/manifests.sh --allow-unchecked AIGatewayRoute --allow-unchecked AIServiceBackend
fi

step "the filter, as a module for Envoy"
./wasm-build.sh --test
./wasm-build.sh --test --features test-trap --tokenizer tests/data/bytes --out warmpath-trap.wasm
step "the simulated pods"
cargo build --quiet --locked --package pod-sim
export POD_SIM=$PWD/$target/debug/pod-sim WARMPATH_WASM=$PWD/warmpath-test.wasm
[ "${target#/}" = "$target" ] || POD_SIM=$target/debug/pod-sim

case $what in
  container)
    step "a container image with Envoy"
    # shellcheck source=tests/container.sh
    . tests/container.sh
    ;;
  all|e2e)
    step "Envoy"
    ENVOY_BIN=$(envoy/get-envoy.sh)
    export ENVOY_BIN
    echo "$ENVOY_BIN"
    ;;
esac

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

e2e=(--package warmpath-tests)
case $what in
  all)
    run "${ENVOY:-Envoy ${ENVOY_VERSION:-$default}}, with unit tests" --workspace
    for version in "${versions[@]}"; do
      [ "$version" = "${ENVOY_VERSION:-$default}" ] || run_version "$version" "${e2e[@]}" "${quick[@]}"
    done
    ;;
  versions) for version in "${versions[@]}"; do run_version "$version" "${e2e[@]}" "${args[@]}"; done ;;
  container)
    run "$ENVOY_IMAGE, whether it is a container" "${e2e[@]}" --test container --test image -- --ignored
    run "$ENVOY_IMAGE" "${e2e[@]}" "${args[@]}"
    ;;
  e2e) run "$ENVOY_BIN" "${e2e[@]}" "${args[@]}" ;;
esac

printf '\n%-60s %8s %8s %14s %8s\n' "tests on" passed failed "parts left out" seconds
for row in "${table[@]}"; do
  IFS='|' read -r where passed failures parts seconds <<<"$row"
  printf '%-60s %8s %8s %14s %8s\n' "$where" "$passed" "$failures" "$parts" "$seconds"
done
exit $failed
