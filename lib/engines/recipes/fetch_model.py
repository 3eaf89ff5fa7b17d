"""Fetch Llama-3-70B-Instruct, or a quantized copy of it, at a stated revision; or take it from a folder of the user's.

    HF_TOKEN=... python fetch_model.py --out FOLDER --scheme REPOSITORY@REVISION

Where FIRST_TOKEN_SLA_MODELS names a folder that holds the model, under its own name or as a hub cache, its files are
linked and nothing is fetched. Refused: a model of other shapes than the one under study, and one with a file missing.
What was found is written into `origin.json`: repository, revision asked for, commit, the base that the card names.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

WANTED = ["*.json", "*.safetensors", "README.md", "LICENSE*"]
LEFT = ["original/*", "*.bin", "*.pth"]         # the same weights once more
# Llama-3-70B: config.json of the family; rope scaling came with 3.1 and would be another model.
SHAPES = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
          "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0, "rope_scaling": None,
          "max_position_embeddings": 8192}


def kept_by_user(repository: str, revision: str) -> Path | None:
    """The folder of the user's that holds the model, if there is one."""
    models = os.environ.get("FIRST_TOKEN_SLA_MODELS")
    if not models:
        return None
    plain = Path(models) / repository.rpartition("/")[2]
    cached = Path(models) / f"models--{repository.replace('/', '--')}" / "snapshots" / revision
    return next((folder for folder in (cached, plain) if (folder / "config.json").exists()), None)


def link(folder: Path, out: Path) -> None:
    """Link every file that a server reads."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and any(path.match(pattern) for pattern in WANTED):
            (out / path.name).symlink_to(path.resolve())


def fetch(repository: str, revision: str, out: Path) -> str:
    """Fetch from the hub; returns the commit."""
    try:
        commit = HfApi().model_info(repository, revision=revision).sha
        snapshot_download(repository, revision=commit, local_dir=out, allow_patterns=WANTED, ignore_patterns=LEFT)
    except GatedRepoError as error:
        sys.exit(f"{repository} is behind a licence. Accept it on the model's page at huggingface.co, make a token "
                 f"of that account and run the same command with HF_TOKEN set to it ({type(error).__name__}).")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        sys.exit(f"{repository} at {revision} could not be fetched: {error}. Where the node has no way out, fetch it "
                 "elsewhere and name the folder in FIRST_TOKEN_SLA_MODELS.")
    return str(commit)


def check(folder: Path) -> None:
    """Refuse another model, and one with a file missing."""
    config = json.loads((folder / "config.json").read_text())
    other = {key: config.get(key) for key, value in SHAPES.items() if config.get(key) != value}
    if other:
        sys.exit(f"{folder} is not Llama-3-70B: its config.json says {other}, and {SHAPES} was expected.")
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        sys.exit(f"{folder} has no {index.name}: its weights cannot be told to be whole.")
    named = set(json.loads(index.read_text())["weight_map"].values())
    missing = sorted(name for name in named | {"tokenizer.json"} if not (folder / name).exists())
    if missing:
        sys.exit(f"{folder} lacks {', '.join(missing)}.")


def base_named(folder: Path) -> str | None:
    """The base model that the card names."""
    card = folder / "README.md"
    found = re.search(r"^base_model:\s*(?:\n\s*-\s*)?(\S+)", card.read_text(), re.MULTILINE) if card.exists() else None
    return found[1] if found else None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scheme", required=True)
    told = parser.parse_args()
    repository, _, revision = told.scheme.partition("@")
    kept = kept_by_user(repository, revision)
    if kept:
        link(kept, told.out)
        commit = kept.name if kept.parent.name == "snapshots" else "unknown: a folder of the user's"
    else:
        commit = fetch(repository, revision, told.out)
    check(told.out)
    origin = {"repository": repository, "asked": revision, "commit": commit, "base": base_named(told.out)}
    (told.out / "origin.json").write_text(json.dumps(origin, indent=1))
    print(json.dumps(origin))


if __name__ == "__main__":
    main()
