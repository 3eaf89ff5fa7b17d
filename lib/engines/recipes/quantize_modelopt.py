"""Quantize a Hugging Face model to FP8 weights, activations and KV cache with NVIDIA ModelOpt, in its unified format.

    python quantize_modelopt.py --model FOLDER --texts 512 --out FOLDER

Runs in an environment that holds torch, transformers and nvidia-modelopt, such as TensorRT-LLM's image, on GPUs that
hold the 16-bit model together. Scales come from texts of this study's own, the same for everyone; lm_head stays at
16 bit. Refused: a model folder without a tokenizer. Written after ModelOpt's documentation, and not yet run on a GPU.
"""

import argparse
import random
import shutil
import sys
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

SEED, TOKENS = 20261130, 512
# Openings and turns of finance prose; scales need ranges of activations, not sense.
SUBJECTS = ("The central bank", "The issuer", "Net interest income", "The board", "Free cash flow", "The regulator",
            "Operating margin", "The bond market", "The acquirer", "Loan growth", "The fund", "Guidance for the year")
VERBS = ("rose", "fell", "was left unchanged", "beat the consensus", "missed expectations", "was restated",
         "was approved", "widened", "narrowed", "was suspended", "recovered", "was downgraded")
TAILS = ("by {n} basis points in the quarter", "to {n} million dollars", "after {n} days of review",
         "against {n} percent a year earlier", "in {n} of the last eight quarters",
         "on volume of {n} thousand contracts",
         "while the spread stood at {n} basis points", "as {n} analysts had forecast")


def text(chance: random.Random) -> str:
    """One calibration text, somewhat longer than is used of it."""
    return " ".join(
        f"{chance.choice(SUBJECTS)} {chance.choice(VERBS)} {chance.choice(TAILS).format(n=chance.randint(2, 990))}."
        for _ in range(48)
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    told = parser.parse_args()
    if not (told.model / "tokenizer.json").exists():
        sys.exit(f"{told.model} has no tokenizer.json.")
    tokenizer = AutoTokenizer.from_pretrained(told.model)
    model = AutoModelForCausalLM.from_pretrained(told.model, torch_dtype=torch.bfloat16, device_map="auto")
    model.eval()
    chance = random.Random(SEED)
    batches = [tokenizer(text(chance), return_tensors="pt", truncation=True, max_length=TOKENS).input_ids
               for _ in range(told.texts)]

    def forward(quantized: torch.nn.Module) -> None:
        with torch.no_grad():
            for batch in batches:
                quantized(batch.to(model.device))

    config = dict(mtq.FP8_DEFAULT_CFG)
    config["quant_cfg"] = {**config["quant_cfg"], **mtq.FP8_KV_CFG["quant_cfg"]}
    mtq.quantize(model, config, forward)
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=told.out)
    for path in [*told.model.glob("tokenizer*"), *told.model.glob("special_tokens_map.json")]:
        if not (told.out / path.name).exists():
            shutil.copy(path, told.out)


if __name__ == "__main__":
    main()
