"""LoRA adapters for Llama-3-70B-Instruct from a seed and the model's shapes: random, so speed and identity only.

    python make_adapters_70b.py --out FOLDER --scheme r8|r16

Writes what make_adapters.py writes for the small model, without its weights: `adapter-1` to `adapter-8` on the
attention's four matrices, as peft lays them out, and two that a server must refuse: `rank-128`, and `other-base` for a
narrower model. Numbers are float16; an adapter of rank 8 is 66 MB. B is drawn too, so strong that an adapter changes a
weight by about a fifth of 0.02, the model's own initializer range; alpha is twice the rank.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np

SEED = 20261201
COUNT = 8
OVER_LIMIT = 128        # rank above what the launches of this study allow
SPREAD = 0.1            # standard deviation of B
LAYERS, HIDDEN, KEY_VALUE = 80, 8192, 1024
NARROW = 4096           # hidden size of the model that `other-base` is for
PART = np.dtype("<f2")


def shapes(hidden: int, rank: int) -> dict[str, tuple[int, int]]:
    """Every tensor of an adapter by its name in peft's files: rows, columns."""
    outputs = {"q_proj": hidden, "k_proj": KEY_VALUE, "v_proj": KEY_VALUE, "o_proj": hidden}
    found: dict[str, tuple[int, int]] = {}
    for layer in range(LAYERS):
        for matrix, rows in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{matrix}"
            found |= {f"{name}.lora_A.weight": (rank, hidden), f"{name}.lora_B.weight": (rows, rank)}
    return found


def write(folder: Path, hidden: int, rank: int, seed: int) -> None:
    """Write one adapter: its configuration and its tensors in safetensors' format."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "inference_mode": True, "base_model_name_or_path": None,
        "target_modules": ["k_proj", "o_proj", "q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
    tensors, draw, end = shapes(hidden, rank), np.random.default_rng(seed), 0
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for name, (rows, columns) in tensors.items():
        begin, end = end, end + rows * columns * PART.itemsize
        head[name] = {"dtype": "F16", "shape": [rows, columns], "data_offsets": [begin, end]}
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(said)) + said)
        for name, shape in tensors.items():
            if ".lora_A." in name:  # as peft begins: uniform, by the matrix's inputs
                values = (2 * draw.random(shape, dtype=np.float32) - 1) / np.sqrt(np.float32(hidden))
            else:
                values = SPREAD * draw.standard_normal(shape, dtype=np.float32)
            file.write(values.astype(PART).tobytes())


def main() -> None:
    """Write all adapters of one rank to `--out`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scheme", choices=("r8", "r16"), required=True)
    told = parser.parse_args()
    rank = int(told.scheme.removeprefix("r"))
    for place in range(1, COUNT + 1):
        write(told.out / f"adapter-{place}", HIDDEN, rank, SEED + 100 * rank + place)
    write(told.out / f"rank-{OVER_LIMIT}", HIDDEN, OVER_LIMIT, SEED)
    write(told.out / "other-base", NARROW, rank, SEED)


if __name__ == "__main__":
    main()
