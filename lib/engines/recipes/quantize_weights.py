"""Quantize a Hugging Face folder by round-to-nearest with llm-compressor: no calibration data, no accelerator.

Schemes: `w8a8`, int8 weights per channel and int8 activations per token; `w4a16-g64`, int4 weights in groups of 64.
The embedding and the output matrix (one tied tensor in this model) keep 16 bits in both, as vLLM expects.
"""

import argparse
import shutil
from pathlib import Path

import torch
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM

# 576 inputs, the width of most layers of this model, are no multiple of the usual group of 128.
GROUP = 64


def scheme(name: str) -> QuantizationScheme:
    """Return the llm-compressor preset behind a scheme of ours."""
    if name == "w8a8":
        return preset_name_to_scheme("W8A8", ["Linear"])
    wanted = preset_name_to_scheme("W4A16", ["Linear"])
    wanted.weights.group_size = GROUP
    return wanted


def main() -> None:
    """Read the folder `--source`, write the quantized one to `--out`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--scheme", choices=("w8a8", "w4a16-g64"), required=True)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.source, dtype=torch.bfloat16)
    rounding = QuantizationModifier(config_groups={"group_0": scheme(args.scheme)}, ignore=["lm_head"])
    oneshot(model=model, recipe=rounding)
    model.save_pretrained(args.out, save_compressed=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy2(args.source / name, args.out / name)


if __name__ == "__main__":
    main()
