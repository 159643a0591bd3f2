"""usage: model.py TOKENIZER DIR

Makes a model that vLLM can serve without a hub: the tokenizer and chat template of a real one, and a Llama of two small layers whose
weights vLLM draws at random (--load-format dummy).
"""
import json
import os
import shutil
import sys

tokenizer, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(os.path.join(tokenizer, name), out)
config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 151936,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
with open(os.path.join(out, "config.json"), "w") as file:
    json.dump(config, file)
