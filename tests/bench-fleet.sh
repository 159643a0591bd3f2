#!/usr/bin/env bash
# Which profile gives the first token soonest, in a real Envoy: eight simulated pods of which one is three times slower, and system
# prompts of which few are asked for most (Zipf). Each profile gets the same load on pods that have just started. 4 minutes.
# usage: tests/bench-fleet.sh [PROFILE…]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# != 0 ] || set -- cost-aware prefix-aware least-requests round-robin random consistent-hash sticky-session
work=$PWD/.envoy/fleet
mkdir -p "$work"
./wasm-build.sh >/dev/null
cargo build --quiet --locked --release -p pod-sim --bins
bin=${CARGO_TARGET_DIR:-$PWD/target}/release
envoy=$(envoy/get-envoy.sh)
started=()
stop() { [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true; wait 2>/dev/null || true; started=(); }
trap stop EXIT

runs=()
for profile in "$@"; do
  coproc PODS { exec "$bin/pod-sim" --pods 8 --port 0 --enable-prompt-tokens-details --exit-with-parent --blocks 2048 2>&1; }
  started+=("$PODS_PID")
  pods=()
  while [ ${#pods[@]} -lt 8 ] && read -r line <&"${PODS[0]}"; do
    [[ $line == "listening on "* ]] && pods+=("${line#listening on }")
  done
  python3 - "${pods[3]}" <<'EOF'
import sys, urllib.request
urllib.request.urlopen(f"http://{sys.argv[1]}/sim/fault", b'{"kind": "slow", "factor": 3}', timeout=5)
EOF
  args=(--listen 127.0.0.1 --port 18080 --admin-port 19901 --wasm "$PWD/warmpath.wasm" --profile "$profile")
  for pod in "${pods[@]}"; do args+=(--pod "$pod"); done
  python3 envoy/render.py "${args[@]}" >"$work/envoy.yaml"
  "$envoy" -c "$work/envoy.yaml" --concurrency 2 --disable-hot-restart --log-level warning >"$work/envoy.log" 2>&1 &
  started+=($!)
  for _ in $(seq 100); do
    python3 -c 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:19901/ready", timeout=1)' 2>/dev/null && break
    sleep 0.2
  done
  echo "$profile ..." >&2
  "$bin/replay" --url http://127.0.0.1:18080 --label "$profile" --header x-warmpath-debug:1 --quiet --out "$work/$profile.json" \
    --conversations 600 --turns 2 --system-prompts 120 --skew 1 --system-words 1200 --turn-words 80 --answer-tokens 32 \
    --concurrency 40 --think-ms 150 >"$work/replay.log" || { cat "$work/replay.log" >&2; exit 1; }
  runs+=("$work/$profile.json")
  stop
done
"$bin/replay" --compare "${runs[@]}"
