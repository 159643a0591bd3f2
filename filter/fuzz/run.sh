#!/usr/bin/env bash
# Runs every fuzz target on what hostile publishers may send, and fails on a finding: a panic, a hang, or memory out of all
# proportion to the input. Works with stable Rust, a C++ compiler and Python 3; installs cargo-fuzz if it is missing.
#
# usage: filter/fuzz/run.sh [RUNS]   inputs for each target; a million if not said
#
# What is met on the way is kept in corpus/ for the next time. A finding is left in artifacts/TARGET/; once more, alone:
#   cd filter/fuzz && cargo fuzz run --sanitizer none TARGET artifacts/TARGET/crash-…
set -euo pipefail
cd "$(dirname "$0")"
runs=${1:-1000000}

step() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

command -v cargo-fuzz >/dev/null || cargo install --quiet --locked cargo-fuzz@0.13.2
cargo fetch --quiet --locked

# What real engines sent, and of every form that is read one example: the fuzzer changes them.
python3 - <<'PYTHON'
import pathlib, struct

def put(target, name, data):
    path = pathlib.Path("corpus", target, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)

captured = []
for which in "ab":
    data = pathlib.Path(f"../../tests/data/vllm-0.32-kv-events-{which}.bin").read_bytes()
    # Options: as in this file, in blocks of 32 tokens. Room for 200 blocks.
    put("feed", f"captured-{which}", bytes([4, 200]) + data)
    while data:
        (length,) = struct.unpack_from("<I", data)
        captured.append(data[4 : 4 + length])
        data = data[4 + length :]
for number, payload in enumerate(captured):
    put("msgpack", f"captured-{number}", payload)
# Whatever `arbitrary` makes of these.
for number, options in enumerate([1, 3]):
    put("feed", f"made-{number}", bytes([options, 20]) + bytes(range(256)) * 4)

stored = b"\x92\xacBlockRemoved\x93\xc4\x20" + bytes(32) + b"\xfe\xa3abc"
put("msgpack", "names", b"\x93\xcb\x3f\xf0\0\0\0\0\0\0\x91" + stored + b"\x03")
put("msgpack", "extra", b"\x92\x01\x91\x98\xabBlockStored\x92\x07\x08\xc0\x92\x01\x02\x01\xc0\xa3GPU\xa1a"
    b"\x92\x92\xa1a\xa4salt\x91\x92\xa1h\x00")
put("msgpack", "many", b"\x92\x01\xdd\x00\x01\x00\x00" + b"\x90" * 65536)
# What errors may quote.
put("msgpack", "long", b"\xda\x0f\x00" + b"\x01" * 0xf00)
put("json", "long", b'[1,["' + b"x" * 0xf00 + b'"]]')
for number, text in enumerate([
    '[1.5,[["BlockStored",[7,-1],3,[1,2,3,4],2,null,"GPU","a",[["a","salt"],[["h",0]]],null,null,null,"LOCAL",9]],3]',
    '{"ts":2.5,"later":{"x":[1]},"events":[{"type":"BlockStored","block_hashes":[7],"parent_block_hash":"n","token_ids":[1,2],'
    '"block_size":2,"cache_salt":"s\\u00e9","lora_id":4,"extra_keys":[{"k":true}],"kv_cache_spec_kind":"mla_attention",'
    '"group_idx":1}],"data_parallel_rank":3}',
    '[1,[["BlockRemoved",[5],"CPU",2],["AllBlocksCleared"],["Later",1.5e3,[[2]]]]]',
]):
    put("json", f"made-{number}", text.encode())

# Options: nothing was said or, with 1, hello; messages of up to 100,000 bytes, all of them wanted. Then two cuts.
signature = b"\xff\0\0\0\0\0\0\0\x01\x7f"
greeting = signature + b"\x03\x01NULL" + bytes(48)
ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"
put("zmtp", "greeting", bytes([6, 2, 10, 0, 70, 0]) + greeting + ready + b"\x00\x01x")
put("zmtp", "libzmq-3", bytes([6, 2, 10, 0, 11, 0]) + signature + b"\x01\x01\0\0")
long = b"\x05READY\x0bSocket-Type\0\0\x0f\0" + bytes(0xf00)
put("zmtp", "long", bytes([6, 0]) + greeting + b"\x06" + struct.pack(">Q", len(long)) + long)
payload = captured[0]
message = b"\x01\x04kv@p\x01\x08" + bytes(8) + b"\x02" + struct.pack(">Q", len(payload)) + payload
put("zmtp", "message", bytes([7, 2, 100, 0, 0, 2]) + b"\x04\x0a\x04PING\x00\x10abc" + message)

# Of what engines said of their load, all but histograms and comments: short inputs are changed more often.
for file in pathlib.Path("../tests/data/metrics").glob("*.txt"):
    lines = file.read_bytes().splitlines(keepends=True)
    put("metrics", file.stem, b"".join(line for line in lines if b"_bucket" not in line and line[:1] != b"#"))
for number, text in enumerate([
    'TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.043, cpu_utilization=0.3',
    'JSON {"named_metrics": {"num_requests_waiting": 1.0, "kv_cache_usage_perc": 0.043}, "utilization": {"x": [1]}}',
    ' vllm:lora_requests_info { max_lora = "4" , running_lora_adapters="a\\\\b,c\\"", } 1.5e9 -3 # {x="y"} 1\r\n',
]):
    put("metrics", f"made-{number}", text.encode())

# A body and an answer for each protocol.
for number, (body, answer) in enumerate([
    ('{"model":"m","messages":[],"max_tokens":9,"stream":true,"stream_options":{},"kv_transfer_params":{"do_remote_prefill":true}}',
     '{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1}}'),
    ('{"prompt":[1,2],"vllm_xargs":{"a":1,"kv_transfer_params":""},"n":1}', '{"choices":[{"finish_reason":"length"}]}'),
    ('{"text":"a","sampling_params":{"n":1},"bootstrap_room":1,"bootstrap_host":"h"}', ''),
    ('{"prompt":"a","max_tokens":9,"disaggregated_params":{}}',
     '{"choices":[{"finish_reason":"length","disaggregated_params":{"request_type":"context_only","ctx_usage":null}}],'
     '"usage":{},"prompt_token_ids":[[1]]}'),
    ('{"messages":[],"tool_choice":{"type":"tool"}}', '{"0":{"engine_id":"e","worker_addr":{}}}'),
]):
    put("handoff", f"made-{number}", body.encode() + b"\0" + answer.encode())
PYTHON

for target in feed handoff json metrics msgpack zmtp; do
  step "$target"
  dictionary=()
  case $target in
    json|msgpack) dictionary=(-dict=events.dict) ;;
    handoff) dictionary=(-dict=handoff.dict) ;;
    metrics) dictionary=(-dict=metrics.dict) ;;
  esac
  cargo fuzz run --sanitizer none "$target" -- \
    -runs="$runs" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 "${dictionary[@]}"
done
