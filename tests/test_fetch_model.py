"""Llama-3-70B from a folder of the user's, or refused with what is wrong: no network, no weights."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "lib" / "engines" / "recipes" / "fetch_model.py"
SHAPES = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
          "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0, "max_position_embeddings": 8192}


@pytest.fixture
def models(tmp_path):
    """A folder of the user's that holds a model whose weights are two empty files."""
    folder = tmp_path / "models" / "Meta-Llama-3-70B-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SHAPES))
    names = {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    for name in ("model-1.safetensors", "model-2.safetensors", "tokenizer.json", "consolidated.pth"):
        (folder / name).write_text("")
    (folder / "README.md").write_text("---\nbase_model: meta-llama/Meta-Llama-3-70B-Instruct\n---\n")
    return folder


def fetch(models: Path, out: Path) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), "--scheme", "meta-llama/Meta-Llama-3-70B-Instruct@abc"],
        env=os.environ | {"FIRST_TOKEN_SLA_MODELS": str(models.parent), "HF_HUB_OFFLINE": "1"}, capture_output=True,
        text=True, check=False,
    )


def test_a_model_already_there_is_linked_and_named(models, tmp_path):
    done = fetch(models, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    origin = json.loads((tmp_path / "out" / "origin.json").read_text())
    assert origin == {"repository": "meta-llama/Meta-Llama-3-70B-Instruct", "asked": "abc",
                      "commit": "unknown: a folder of the user's", "base": "meta-llama/Meta-Llama-3-70B-Instruct"}
    linked = tmp_path / "out" / "model-1.safetensors"
    assert linked.is_symlink() and linked.resolve() == models / "model-1.safetensors"
    assert not (tmp_path / "out" / "consolidated.pth").exists()


@pytest.mark.parametrize("spoil, says", [
    (lambda f: (f / "config.json").write_text(json.dumps(SHAPES | {"num_hidden_layers": 32})),
     "is not Llama-3-70B.*'num_hidden_layers': 32"),
    (lambda f: (f / "config.json").write_text(json.dumps(SHAPES | {"rope_scaling": {"factor": 8}})), "rope_scaling"),
    (lambda f: (f / "model-2.safetensors").unlink(), "lacks model-2.safetensors"),
    (lambda f: (f / "tokenizer.json").unlink(), "lacks tokenizer.json"),
])
def test_another_model_or_half_of_one_is_refused(models, tmp_path, spoil, says):
    spoil(models)
    done = fetch(models, tmp_path / "out")
    assert done.returncode == 1
    assert re.search(says, done.stderr), done.stderr
