"""Says whether vLLM 0.32's own classes accept request bodies: stdin has lines of JSON, one line of result each; exit 1 if one is refused.

  {"endpoint": "chat|completions|responses|messages", "leg": "prefill|decode|plain", "connector": "nixl|mooncake" (nixl), "body": {...}}

Run by the python of the venv with vLLM; no nixl, no mooncake, no GPU. With each body go
1. the request class (pydantic, with its validators), messages by vLLM's converter to a chat request;
2. to_sampling_params: the limits, and kv_transfer_params in extra_args as they were in the body;
3. vllm.v1.request.Request, and the connector's scheduler in the order the engine calls it: on_new_request, get_num_new_matched_tokens,
   update_state_after_alloc, build_connector_meta, request_finished. What it does must be a handover: for prefill NIXL's answer (its blocks pinned
   and kv_transfer_params to return), for decode tokens claimed as external and a receive with blocks; for plain neither.
A leg must also be what a leg should be: prefill is not streamed and is for one token, decode has no do_remote_decode.
"""
import json, os, sys, types
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR"); os.environ.setdefault("HF_HUB_OFFLINE", "1"); os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
import torch
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

BLOCK, PROMPT, ROOM = 32, 100, 1000
CLASSES = {"chat": ChatCompletionRequest, "completions": CompletionRequest, "responses": ResponsesRequest, "messages": AnthropicMessagesRequest}
BLOCKS = [1, 2, 3, 4]

def scheduler(connector, leg):
    role = {"prefill": "kv_producer", "decode": "kv_consumer"}.get(leg, "kv_both")
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    cache = KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])
    of = types.SimpleNamespace
    config = of(parallel_config=of(tensor_parallel_size=1, decode_context_parallel_size=1, pipeline_parallel_size=1, data_parallel_index=0, data_parallel_rank=0),
                cache_config=of(block_size=BLOCK), scheduler_config=of(disable_hybrid_kv_cache_manager=False), num_prefill_lookahead_tokens=0,
                speculative_config=None, model_config=of(use_mla=False),
                kv_transfer_config=of(kv_role=role, kv_buffer_device="cpu", kv_connector_extra_config={}, get_from_extra_config=lambda _, default: default))
    return {"nixl": NixlPullConnectorScheduler, "mooncake": MooncakeConnectorScheduler}[connector](config, "engine-here", cache)

def sampling(endpoint, request, leg):
    if endpoint == "messages":
        chat = AnthropicServingMessages.to_chat_completion_request(request)
        return chat, sampling("chat", chat, leg)[1]
    if endpoint == "responses":
        return request, request.to_sampling_params(ROOM, {})
    limit = request.max_tokens
    if endpoint == "chat" and request.max_completion_tokens is not None:
        limit = request.max_completion_tokens
    return request, request.to_sampling_params(ROOM if limit is None else min(limit, ROOM), {})

def check(item):
    endpoint, leg, connector, body = item["endpoint"], item["leg"], item.get("connector", "nixl"), item["body"]
    assert leg in ("prefill", "decode", "plain"), f"leg {leg!r}"
    request = CLASSES[endpoint].model_validate(body)
    unknown = sorted(request.model_extra or {})
    _, params = sampling(endpoint, request, leg)
    sent = body.get("kv_transfer_params")
    carried = (params.extra_args or {}).get("kv_transfer_params")
    assert (carried or None) == (sent or None), f"kv_transfer_params reach the engine as {carried!r}"
    carried = dict(carried) if carried else None
    if leg == "prefill":
        assert params.max_tokens == 1, f"a prefill of {params.max_tokens} tokens"
        assert params.n == 1, f"a prefill with n {params.n}"
        assert not body.get("stream"), "a streamed prefill: its answer would have no kv_transfer_params"
        assert not body.get("stream_options"), "stream_options without stream"
        assert carried and carried.get("do_remote_decode"), "no do_remote_decode"
        assert not carried.get("do_remote_prefill"), "do_remote_prefill in a prefill"
    elif leg == "decode":
        assert carried and carried.get("do_remote_prefill"), "no do_remote_prefill"
        assert not carried.get("do_remote_decode"), "do_remote_decode in a decode"
        assert params.n == 1, f"n {params.n}: each would pull, and the first to end frees the blocks of the others"
    side = scheduler(connector, leg)
    tokens = list(range(1, PROMPT + 1))
    engine = Request("request-here", tokens, params, None)
    side.on_new_request(engine)
    external, later = side.get_num_new_matched_tokens(engine, 0)
    blocks = [KVCacheBlock(block_id=n) for n in BLOCKS]
    side.update_state_after_alloc(engine, KVCacheBlocks((blocks,)), external)
    step = types.SimpleNamespace(scheduled_new_reqs=[], scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()), num_scheduled_tokens={})
    side_meta = side.build_connector_meta(step)
    receives = side_meta.reqs_to_recv
    if leg == "decode":
        assert external == PROMPT and later, f"{external} of {PROMPT} tokens are to come from the prefill"
        assert receives, "tokens are claimed as external and no receive is planned: the request would hang"
    else:
        assert external == 0 and not receives, f"a {leg} that waits for {external} tokens"
    engine.status = RequestStatus.FINISHED_LENGTH_CAPPED
    engine.num_computed_tokens = PROMPT
    pinned, answer = side.request_finished(engine, (BLOCKS,))
    assert pinned == (leg == "prefill"), "the prefill's blocks are not kept" if leg == "prefill" else f"a {leg} whose blocks are kept"
    if connector == "nixl":
        assert bool(answer) == (leg == "prefill"), f"answers {answer!r}"
        if answer:
            assert answer["do_remote_prefill"] and answer["remote_block_ids"], f"answers {answer!r}"
    return "ok" + (f" (unknown to vLLM, ignored: {', '.join(unknown)})" if unknown else "")

failed = False
for line in sys.stdin:
    if not line.strip():
        continue
    try:
        result = check(json.loads(line))
    except BaseException as error:  # noqa: BLE001: pydantic's, vLLM's own, assertions in the schedulers
        if isinstance(error, KeyboardInterrupt):
            raise
        failed = True
        frames, t = "", error.__traceback__
        while t and t.tb_next:
            t = t.tb_next
        if t and "vllm" in t.tb_frame.f_code.co_filename:
            frames = f" [{t.tb_frame.f_code.co_filename.split('site-packages/')[-1]}:{t.tb_lineno}]"
        result = f"{type(error).__name__}: {' '.join(str(error).split())}{frames}"
    print(result, flush=True)
sys.exit(failed)
