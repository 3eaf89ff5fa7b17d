"""LoRA adapters for SmolLM2-135M-Instruct from a seed, made with peft: random weights, so speed and identity only.

`--scheme r8` writes `adapter-1` to `adapter-8` of rank 8 on the attention's four matrices, each as peft saves it and as
`adapter.gguf` for llama.cpp; and two that a server must refuse: `rank-128`, and `other-base` for a narrower model.
B is drawn too (peft starts it at zero, and such an adapter would be the model itself); alpha is twice the rank.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SEED = 20261130
COUNT = 8
SPREAD = 0.3            # standard deviation of B: changes of a fifth to a quarter of the weights' own size
OVER_LIMIT = 128        # rank above what the launches of this study allow
MATRICES = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}


def make(model: PreTrainedModel, out: Path, names: list[str], rank: int, seed: int) -> None:
    """Write one adapter per name, all of one rank, as peft saves them."""
    wanted = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(MATRICES), task_type="CAUSAL_LM")
    torch.manual_seed(seed)
    with_adapters = get_peft_model(model, wanted, adapter_name=names[0])
    for name in names[1:]:
        with_adapters.add_adapter(name, wanted)
    for key, value in with_adapters.named_parameters():
        if ".lora_B." in key:
            torch.nn.init.normal_(value, std=SPREAD)
    with_adapters.save_pretrained(out, selected_adapters=names, save_embedding_layers=False)
    for name in names:
        (out / "README.md").unlink(missing_ok=True)
        (out / name / "README.md").unlink(missing_ok=True)
        path = out / name / "adapter_config.json"
        # Where the model lay on the computer that made the adapter is nobody's business.
        told = json.loads(path.read_text()) | {"base_model_name_or_path": None, "target_modules": sorted(MATRICES)}
        path.write_text(json.dumps(told, indent=1, sort_keys=True))
    with_adapters.unload()


def paired_side_by_side(rows: np.ndarray, heads: int) -> np.ndarray:
    """Query and key rows in GGUF's order: rotary pairs side by side, where Hugging Face keeps them in two halves."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(folder: Path, heads: dict[str, int]) -> None:
    """Write a saved adapter again, as llama.cpp reads it."""
    writer = gguf.GGUFWriter(folder / "adapter.gguf", "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    told = json.loads((folder / "adapter_config.json").read_text())
    writer.add_float32("adapter.lora.alpha", float(told["lora_alpha"]))
    for key, tensor in load_file(folder / "adapter_model.safetensors").items():
        _, _, _, _, layer, _, matrix, part, _ = key.split(".")  # base_model.model.model.layers.0.self_attn.q_proj...
        values = tensor.to(torch.float32).numpy()
        if part == "lora_B" and matrix in heads:
            values = paired_side_by_side(values, heads[matrix])
        writer.add_tensor(f"blk.{layer}.{MATRICES[matrix]}.weight.{part.lower()}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write all adapters of one rank to `--out`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--scheme", required=True)
    args = parser.parse_args()
    rank = int(args.scheme.removeprefix("r"))
    config = AutoConfig.from_pretrained(args.source)
    model = AutoModelForCausalLM.from_pretrained(args.source, dtype=torch.float32)
    names = [f"adapter-{i + 1}" for i in range(COUNT)]
    make(model, args.out, names, rank, SEED + rank)
    make(model, args.out, [f"rank-{OVER_LIMIT}"], OVER_LIMIT, SEED)
    narrow = AutoConfig.from_pretrained(args.source)
    narrow.hidden_size, narrow.intermediate_size, narrow.vocab_size = config.hidden_size // 3 * 2, 768, 256
    narrow.num_attention_heads, narrow.num_hidden_layers = 6, config.num_hidden_layers
    make(AutoModelForCausalLM.from_config(narrow), args.out, ["other-base"], rank, SEED)
    for name in [*names, f"rank-{OVER_LIMIT}", "other-base"]:
        of = narrow if name == "other-base" else config
        write_gguf(args.out / name, {"q_proj": of.num_attention_heads, "k_proj": of.num_key_value_heads})


if __name__ == "__main__":
    main()
