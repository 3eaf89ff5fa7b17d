"""Llama-3-70B as a folder without weights: its shapes, its number format, and a tokenizer with as many entries.

    python shape_llama_3_70b.py --out FOLDER --scheme fp8|int4 --source FOLDER_OF_SMOLLM2

An engine that is told to make up its weights needs no more, and nothing in it is under Llama's licence. The tokenizer
is SmolLM2's (Apache-2.0), so that text is cut as usual; the ids it lacks stand for made-up words, so that whatever
token a model of random weights chooses has text that can be seen (314 of them are parts of letters, and wait for the
next). Refused: a tokenizer of another kind or too large.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 128256
# config.json of the Llama-3-70B family.
SHAPES = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCABULARY, "max_position_embeddings": 8192,
    "rope_theta": 500000.0, "rope_scaling": None, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "use_cache": True,
}
# What the checkpoints that h100-current serves say of themselves: one static scale a tensor; AWQ in groups of 128.
FORMATS = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
             "modules_to_not_convert": None},
}


def enlarged(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Give a tokenizer's vocabulary entries up to `VOCABULARY`; no text is ever cut into them."""
    model = tokenizer["model"]
    if model["type"] != "BPE" or len(model["vocab"]) > VOCABULARY:
        sys.exit(f"a BPE tokenizer of at most {VOCABULARY} entries was expected, this is {model['type']} with "
                 f"{len(model['vocab'])}.")
    more = {f"Ġword{number}": number for number in range(len(model["vocab"]), VOCABULARY)}
    return tokenizer | {"model": model | {"vocab": model["vocab"] | more}}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scheme", choices=FORMATS, required=True)
    parser.add_argument("--source", type=Path, required=True)
    told = parser.parse_args()
    tokenizer = enlarged(json.loads((told.source / "tokenizer.json").read_text()))
    (told.out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    shutil.copyfile(told.source / "tokenizer_config.json", told.out / "tokenizer_config.json")
    config = SHAPES | {"quantization_config": FORMATS[told.scheme]}
    (told.out / "config.json").write_text(json.dumps(config, indent=1))
    print(f"{told.scheme}: shapes alone, {VOCABULARY} entries of vocabulary")


if __name__ == "__main__":
    main()
