"""Writes the GGUF files: python3 export_gguf.py WEIGHTS.pt OUT.gguf [--mix NAME] [--tokenizer FILE]"""

import argparse
from pathlib import Path

import numpy as np

import gguf
from gguf import I32, U32
from text import bpe

HERE = Path(__file__).parent
FILE_TYPE = {"f32": 0, "q8": 7, "q6": 18, "q56": 17, "q5": 17, "q45": 15, "q4": 15}


def kind_of(name: str, shape: tuple, mix: str) -> str:
    """The block format of a tensor. Vectors, the router and the scalars of the recurrence stay in f32."""
    small = ("ffn_gate_inp.weight", "ssm_conv1d.weight", "ssm_alpha.weight", "ssm_beta.weight")
    if len(shape) == 1 or name.endswith(small) or mix == "f32":
        return "F32"
    if mix == "q8":
        return "Q8_0"
    of_experts = {"q4": ("Q4_K", "Q4_K"), "q45": ("Q4_K", "Q5_K"), "q5": ("Q5_K", "Q5_K"), "q56": ("Q5_K", "Q6_K")}
    return of_experts[mix]["down" in name] if "_exps" in name and mix in of_experts else "Q6_K"


def tokenizer_keys(tokenizer: bpe.Tokenizer) -> dict:
    kinds = []
    for i, token in enumerate(tokenizer.tokens):
        special = 4 if token in bpe.PRINTED else 3
        kinds.append(I32(1 if i < tokenizer.n_plain else special if i < tokenizer.n_used else 5))
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen35", "tokenizer.ggml.tokens": tokenizer.tokens,
            "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": [" ".join(m) for m in tokenizer.merges],
            "tokenizer.ggml.eos_token_id": U32(tokenizer.ids["<|im_end|>"]),
            "tokenizer.ggml.bos_token_id": U32(tokenizer.ids["<|endoftext|>"]),
            "tokenizer.ggml.padding_token_id": U32(tokenizer.ids["<|endoftext|>"]), "tokenizer.ggml.add_bos_token": False}


def metadata(c, mix: str, tokenizer: bpe.Tokenizer) -> dict:
    a = "qwen35moe."
    keys = {"general.architecture": "qwen35moe", "general.type": "model", "general.name": "Tessera Mini",
            "general.size_label": "16x2M", "general.file_type": U32(FILE_TYPE[mix]), "general.quantization_version": U32(2),
            "general.description": "Small model trained from scratch on generated text; part of Tessera"}
    numbers = {"block_count": c.layers, "context_length": c.context, "embedding_length": c.width, "attention.head_count": c.heads,
               "attention.head_count_kv": c.kv_heads, "attention.key_length": c.head_dim, "attention.value_length": c.head_dim,
               "rope.dimension_count": c.rotary, "full_attention_interval": c.interval, "ssm.conv_kernel": c.conv,
               "ssm.state_size": c.state, "ssm.group_count": c.key_heads, "ssm.time_step_rank": c.value_heads,
               "ssm.inner_size": c.values, "expert_count": c.experts, "expert_used_count": c.used,
               "expert_feed_forward_length": c.expert_width, "expert_shared_feed_forward_length": c.shared_width}
    keys |= {a + key: U32(value) for key, value in numbers.items()}
    keys |= {a + "rope.dimension_sections": [I32(x) for x in (11, 11, 10, 0)], a + "rope.freq_base": c.rope_base,
             a + "attention.layer_norm_rms_epsilon": c.eps,
             a + "attention.recurrent_layers": [not c.attention(i) for i in range(c.layers)]}
    keys |= tokenizer_keys(tokenizer)
    keys["tokenizer.chat_template"] = (HERE.parent / "chat_template.jinja").read_text()
    return keys


def stored(weights: dict) -> dict:
    """Training's numbers to the file's: ssm_a is trained as log(-ssm_a)."""
    return {name: -np.exp(w) if name.endswith("ssm_a") else w for name, w in weights.items()}


def trained(tensors: dict) -> dict:
    return {name: np.log(-w) if name.endswith("ssm_a") else w for name, w in tensors.items()}


def read_weights(path) -> dict:
    """What training goes on from: a file's weights, as it was quantised."""
    return {name: np.array(w, np.float32) for name, w in trained(gguf.read(path)[1]).items()}


def export(weights: dict, c, path, mix: str, tokenizer: bpe.Tokenizer) -> None:
    tensors = {name: (kind_of(name, w.shape, mix), w) for name, w in stored(weights).items()}
    gguf.write(path, metadata(c, mix, tokenizer), tensors)


def main() -> None:
    import torch

    from model import Config

    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("out")
    parser.add_argument("--mix", default="q5", choices=FILE_TYPE)
    parser.add_argument("--tokenizer", default=HERE / "tokenizer.json", help="the one that the weights were trained with")
    options = parser.parse_args()
    weights = {name: w.float().numpy() for name, w in torch.load(options.weights).items()}
    export(weights, Config(), options.out, options.mix, bpe.Tokenizer.load(options.tokenizer))


if __name__ == "__main__":
    main()
