"""What different tools call one weight, in one scheme of names."""

import re

__all__ = ["canonical_name"]

# Pieces of names that tools add and that say nothing about which weight it is.
_ADDED = re.compile(
    r"^(inner|model|module|transformer|gpt_neox|bert|base_model|_orig_mod)\.|"
    r"([._](quantized|weight|weights|int8|qweight|data|DQ|Q[248]))+$"
)
_GGUF = (
    (re.compile(r"^token_embd$"), "embed_tokens"),
    (re.compile(r"^output_norm$"), "norm"),
    (re.compile(r"^output$"), "lm_head"),
    (re.compile(r"^blk\.(\d+)\.attn_q$"), r"layers.\1.self_attn.q_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_k$"), r"layers.\1.self_attn.k_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_v$"), r"layers.\1.self_attn.v_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_qkv$"), r"layers.\1.self_attn.qkv_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_output$"), r"layers.\1.self_attn.o_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_gate$"), r"layers.\1.mlp.gate_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_up$"), r"layers.\1.mlp.up_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_down$"), r"layers.\1.mlp.down_proj"),
    (re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down)_exps$"), r"layers.\1.mlp.experts.\2_proj"),
    (re.compile(r"^blk\.(\d+)\.attn_norm$"), r"layers.\1.input_layernorm"),
    (re.compile(r"^blk\.(\d+)\.ffn_norm$"), r"layers.\1.post_attention_layernorm"),
)
# GPT-NeoX, Falcon, Bloom, InternLM2 and Baichuan
_OTHERS = (
    (re.compile(r"^h\.(\d+)\."), r"layers.\1."),
    (re.compile(r"\.(attention|self_attention)\.(query_key_value|wqkv)$"), ".self_attn.qkv_proj"),
    (re.compile(r"\.self_attn\.W_pack$"), ".self_attn.qkv_proj"),
)
_MIXTRAL = (
    (re.compile(r"block_sparse_moe"), "mlp"),
    (re.compile(r"(experts\.\d+)\.w1$"), r"\1.gate_proj"),
    (re.compile(r"(experts\.\d+)\.w2$"), r"\1.down_proj"),
    (re.compile(r"(experts\.\d+)\.w3$"), r"\1.up_proj"),
)


def canonical_name(name: str) -> str:
    """Strip what tools add to a name and translate it into Hugging Face's scheme."""
    plain = name.replace("/", ".").replace("::", ".").strip(".")
    while (shorter := _ADDED.sub("", plain)) != plain and shorter:
        plain = shorter
    for pattern, scheme in (*_OTHERS, *_MIXTRAL):
        plain = pattern.sub(scheme, plain)
    for pattern, scheme in _GGUF:
        if pattern.match(plain):
            return pattern.sub(scheme, plain)
    return plain
