#!/usr/bin/env bash
# Warmpath in a local Envoy: a demonstration on simulated pods, or in front of yours. Ctrl-C ends all it started.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'EOF'
usage: envoy/run.sh [options]

With no --pod: starts four simulated pods, replays conversations that share system prompts, first by round robin, then
by Warmpath, shows each turn, and compares the two.

  --trace FILE         replay a trace in Mooncake's format instead of the conversations
  --limit N            requests of the trace to replay (default 300)
  --pods N             simulated pods (default 4)
  --quick              fewer conversations

With --pod: writes the Envoy configuration for your pods to .envoy/warmpath.yaml, starts Envoy and prints a request to try.

  --pod HOST:PORT      a pod that serves the OpenAI API; repeatable
  --model NAME         a model that they serve; repeatable
  --listen ADDRESS     where Envoy listens (default 127.0.0.1)

Both:
  --config FILE        plugin configuration in JSON, such as examples/*/warmpath.json; its pods are filled in
  --port PORT          Envoy's port (default 8080)
  --admin-port PORT    Envoy's admin port (default 9901)
  --concurrency N      Envoy's workers (default 4)
EOF
}

pods=() models=() trace="" limit=300 sims=4 quick="" config="" listen=127.0.0.1 port=8080 admin=9901 workers=4
while [ $# -gt 0 ]; do
  case "$1" in
    --pod|--model|--trace|--limit|--pods|--config|--listen|--port|--admin-port|--concurrency)
      [ $# -gt 1 ] || { echo "run.sh: $1 wants a value" >&2; exit 2; } ;;&
    --pod) pods+=("$2"); shift ;;
    --model) models+=("$2"); shift ;;
    --trace) trace=$2; shift ;;
    --limit) limit=$2; shift ;;
    --pods) sims=$2; shift ;;
    --config) config=$2; shift ;;
    --listen) listen=$2; shift ;;
    --port) port=$2; shift ;;
    --admin-port) admin=$2; shift ;;
    --concurrency) workers=$2; shift ;;
    --quick) quick=1 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "run.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

work=$PWD/.envoy
mkdir -p "$work"
started=()
stop() {
  trap - EXIT INT TERM
  [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
}
trap stop EXIT
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM

envoy=$(envoy/get-envoy.sh)
./wasm-build.sh >"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
echo "building the checker and the simulator ..." >&2
cargo build --quiet --locked --release -p warmpath -p pod-sim --bins
bin=${CARGO_TARGET_DIR:-$PWD/target}/release

# start_envoy PROFILE POD...: renders, checks and starts, and waits until it serves.
start_envoy() {
  local profile=$1; shift
  local args=(--listen "$listen" --port "$port" --admin-port "$admin" --wasm "$PWD/warmpath.wasm")
  [ -z "$config" ] || args+=(--config "$config")
  [ -z "$profile" ] || args+=(--profile "$profile")
  local pod model
  for pod in "$@"; do args+=(--pod "$pod"); done
  for model in ${models[@]+"${models[@]}"}; do args+=(--model "$model"); done
  python3 envoy/render.py "${args[@]}" >"$work/warmpath.yaml"
  "$bin/warmpath" check "$work/warmpath.yaml" >"$work/check.log" 2>&1 || { cat "$work/check.log" >&2; exit 1; }
  "$envoy" -c "$work/warmpath.yaml" --concurrency "$workers" --disable-hot-restart --log-level warning \
    >"$work/envoy.log" 2>&1 &
  envoy_pid=$!
  started+=("$envoy_pid")
  for _ in $(seq 150); do
    kill -0 "$envoy_pid" 2>/dev/null || { cat "$work/envoy.log" >&2; echo "run.sh: Envoy did not start" >&2; exit 1; }
    python3 - "$admin" <<'EOF' 2>/dev/null && return
import sys, urllib.request
sys.exit(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/ready", timeout=1).status != 200)
EOF
    sleep 0.2
  done
  cat "$work/envoy.log" >&2; echo "run.sh: Envoy was not ready within 30 s" >&2; exit 1
}

stop_envoy() {
  kill "$envoy_pid" 2>/dev/null || true
  wait "$envoy_pid" 2>/dev/null || true
}

if [ ${#pods[@]} -gt 0 ]; then
  start_envoy "" "${pods[@]}"
  cat <<EOF
Envoy serves ${#pods[@]} pods on http://$listen:$port; its configuration is .envoy/warmpath.yaml, its log .envoy/envoy.log. Try:

  curl -i http://$listen:$port/v1/chat/completions -H 'content-type: application/json' -H 'x-warmpath-debug: 1' \\
    -d '{"model": "${models[0]:-MODEL}", "messages": [{"role": "user", "content": "Hello"}]}'

What it does:  curl http://127.0.0.1:$admin/stats?filter=warmpath        Ctrl-C ends it.
EOF
  wait "$envoy_pid"
  exit
fi

# The demonstration: the same load twice, each time on pods that have just started.
run_demo() {
  local profile=$1 label=$2
  coproc PODS { exec "$bin/pod-sim" --pods "$sims" --port 0 --model "${models[0]:-sim}" --enable-prompt-tokens-details \
    --exit-with-parent "${pod_flags[@]}" 2>&1; }
  local pods_pid=$PODS_PID addresses=() line
  started+=("$pods_pid")
  while [ ${#addresses[@]} -lt "$sims" ] && read -r line <&"${PODS[0]}"; do
    [[ $line == "listening on "* ]] && addresses+=("${line#listening on }")
  done
  [ ${#addresses[@]} -eq "$sims" ] || { echo "run.sh: the simulated pods did not start" >&2; exit 1; }
  start_envoy "$profile" "${addresses[@]}"
  printf '\n== %s\n' "$label"
  "$bin/replay" --url "http://127.0.0.1:$port" --model "${models[0]:-sim}" --label "$label" --header x-warmpath-debug:1 \
    --out "$work/$3.json" "${load_flags[@]}"
  stop_envoy
  kill "$pods_pid" 2>/dev/null || true
  wait "$pods_pid" 2>/dev/null || true
}

if [ -n "$trace" ]; then
  load_flags=(--trace "$trace" --limit "$limit" --speed 10)
  pod_flags=(--blocks 2048 --speedup 10)
elif [ -n "$quick" ]; then
  load_flags=(--conversations 12 --turns 4 --system-prompts 3)
  pod_flags=(--speedup 2)
else
  load_flags=(--conversations 32 --turns 6 --system-prompts 4 --system-words 1200)
  pod_flags=(--speedup 2)
fi
warm=prefix-aware
[ -z "$config" ] || warm=""
run_demo round-robin "round robin" round-robin
run_demo "$warm" Warmpath warmpath
printf '\n'
"$bin/replay" --compare "$work/round-robin.json" "$work/warmpath.json"
