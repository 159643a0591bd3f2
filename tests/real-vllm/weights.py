"""usage: weights.py BASE DIR: BASE's config and tokenizer, with weights (seed 1) that make every token of the prompt matter to the answer.

--load-format dummy draws them within 1e-3, where attention adds next to nothing: a decode that read wrong KV would still say the same."""
import json, os, shutil, sys
import torch
from safetensors.torch import save_file
base, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
for n in ("config.json", "tokenizer.json", "tokenizer_config.json"):
    shutil.copy(os.path.join(base, n), out)
c = json.load(open(os.path.join(base, "config.json")))
g = torch.Generator().manual_seed(1)
h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
a, k = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
def w(o, n, gain=1.0): return (torch.randn(o, n, generator=g) * gain / n ** .5).to(torch.bfloat16)
one = lambda: torch.ones(h, dtype=torch.bfloat16)
t = {"model.embed_tokens.weight": torch.randn(v, h, generator=g).to(torch.bfloat16), "model.norm.weight": one(), "lm_head.weight": w(v, h, 3)}
for l in range(c["num_hidden_layers"]):
    p = f"model.layers.{l}."
    t |= {p + "self_attn.q_proj.weight": w(a, h, 1.5), p + "self_attn.k_proj.weight": w(k, h, 1.5), p + "self_attn.v_proj.weight": w(k, h, 2),
          p + "self_attn.o_proj.weight": w(h, a, 2), p + "mlp.gate_proj.weight": w(i, h), p + "mlp.up_proj.weight": w(i, h),
          p + "mlp.down_proj.weight": w(h, i), p + "input_layernorm.weight": one(), p + "post_attention_layernorm.weight": one()}
save_file(t, os.path.join(out, "model.safetensors"), {"format": "pt"})
