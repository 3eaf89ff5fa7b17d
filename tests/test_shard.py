"""The shard probe on tiny shapes of this computer, and its record against predictions by hand."""

import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from lib import environments, paths
from lib.analyse import shards
from lib.errors import MeasureError, RecordError
from lib.measure import shard

POINT = {"precision": "bf16", "phase": "decode", "batch": 64, "context": 1024}


def record(**us):
    rows = [{**POINT, "operator": name, "kernel": "k", "us": value, "reason": ""} for name, value in us.items()]
    return {"gpu": "NVIDIA H200", "mark": shard.MARK, "rows": rows}


def predicted(**ms):
    rows = [
        {
            "gpu": "H200-SXM-141GB",
            "config": "vllm-bf16",
            "kernels": "measured",
            "operator": name.replace("_", "-"),
            "ms": value,
        }
        for name, value in ms.items()
    ]
    return pd.DataFrame([{**row, **{k: v for k, v in POINT.items() if k != "precision"}} for row in rows])


def test_shapes_are_those_of_one_rank_of_eight():
    linears = shard.LLAMA_70B_TP8.linears()
    assert linears["qkv"] == (1280, 8192) and linears["down"] == (8192, 3584)
    per_layer = sum(out * inp for out, inp in linears.values())
    assert per_layer * 8 * shards.LAYERS == 68_451_041_280  # the linear weights of Llama-3-70B


def test_operator_times_are_those_of_a_whole_step():
    table = shards.by_operator(record(qkv=10, norm=1), predicted(qkv=1.0, norm=0.2)).set_index("operator")
    assert table.loc["qkv", "measured_ms"] == pytest.approx(0.8)  # 10 us x 80 layers
    assert table.loc["norm", "measured_ms"] == pytest.approx(0.16)  # two norms a layer
    assert table.loc["qkv", "ratio"] == pytest.approx(0.8)


def test_only_the_kernels_of_a_step_are_measured():
    operators = shards.by_operator(record(qkv=10), predicted(qkv=1.0, all_reduce=0.5, head=0.1))
    step = shards.by_step(operators).iloc[0]
    assert step["measured_ms"] == pytest.approx(0.8)
    assert step["predicted_ms"] == pytest.approx(1.0)
    assert step["ratio"] == pytest.approx(0.8)
    assert step["together_ms"] == pytest.approx(0.8 + 0.6)  # all-reduce and head as predicted
    assert set(operators["mark"]) == {shard.MARK}


def test_operator_that_was_not_timed_leaves_no_measured_step():
    operators = shards.by_operator(record(qkv=None), predicted(qkv=1.0, all_reduce=0.5))
    assert pd.isna(shards.by_step(operators).iloc[0]["measured_ms"])


def test_gpu_without_predictions_is_refused():
    with pytest.raises(RecordError, match=r"RTX 4090.*H200-SXM-141GB"):
        shards.by_operator({**record(qkv=1), "gpu": "NVIDIA RTX 4090"}, predicted(qkv=1.0))


@pytest.mark.parametrize(
    ("device", "gpu", "yes"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB", True),
        ("NVIDIA H200", "H200-SXM-141GB", True),
        ("NVIDIA H100 PCIe", "H100-SXM-80GB", False),
        ("NVIDIA H100 NVL", "H100-SXM-80GB", False),
        ("NVIDIA GH200 480GB", "H200-SXM-141GB", False),
        ("NVIDIA H200 NVL", "H200-SXM-141GB", False),
        ("NVIDIA H200", "H100-SXM-80GB", False),
    ],
)
def test_only_the_module_itself_is_the_gpu(device, gpu, yes):
    assert shards.is_gpu(device, gpu) is yes


def test_record_in_a_file_is_compared(tmp_path):
    path = tmp_path / "NVIDIA-H200.json"
    path.write_text(json.dumps(record(qkv=10)))
    operators, steps = shards.compare(path)
    here = operators[(operators["operator"] == "qkv") & operators["measured_ms"].notna()]
    assert here["measured_ms"].to_list() == pytest.approx([0.8]) and here["predicted_ms"].notna().all()
    assert {"measured_ms", "predicted_ms", "ratio"} <= set(steps)
    (tmp_path / "other.json").write_text(json.dumps({**record(qkv=10), "gpu": "NVIDIA RTX 4090"}))
    compared, refused = shards.every(tmp_path)  # one unknown GPU leaves the others as they are
    assert list(compared) == ["NVIDIA-H200.json"] and "RTX 4090" in refused["other.json"]
    path.write_text("{}")
    with pytest.raises(RecordError, match="no shard record"):
        shards.compare(path)


def test_committed_operator_times_know_both_gpus_apart():
    table = shards.operator_times()
    decode = table[(table["phase"] == "decode") & (table["operator"] == "gate_up") & (table["config"] == "vllm-bf16")]
    by_point = decode.pivot_table(index="batch", columns="gpu", values="ms")
    # one sequence: the weights decide, read at 4.8 instead of 3.35 TB/s
    assert by_point.loc[1, "H200-SXM-141GB"] < by_point.loc[1, "H100-SXM-80GB"]


def test_machine_without_torch_or_cuda_is_refused():
    with pytest.raises(MeasureError, match=r"torch is not installed|no CUDA GPU"):
        shard.probe()


TINY_RUN = """
import json, sys
from pathlib import Path
from lib.measure import shard
tiny = shard.Shard(hidden=256, heads=2, kv_heads=1, head_dim=64, intermediate=128)
taken = shard.probe(tiny, batches=(1, 3), contexts=(16,), prompts=(32,), device="cpu", copies=1)
print(shard.write(taken, Path(sys.argv[1])))
"""


def test_probe_runs_tiny_shapes_on_the_cpu(tmp_path):
    """In an engine's environment, since torch is in no other."""
    found = [p for name in ("vllm-cpu", "quantize") if (p := environments.python(name)).exists()]
    if not found:
        pytest.skip("no environment with torch has been made; `make report PROFILE=smoke` makes one")
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    command = [found[0], "-c", TINY_RUN, tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken = json.loads(Path(done.stdout.split()[-1]).read_text())
    assert taken["mark"] == shard.MARK
    assert len(taken["rows"]) == 3 * 3 * 7
    assert all(row["us"] or row["reason"] for row in taken["rows"])
    assert {row["precision"] for row in taken["rows"] if row["us"]} >= {"bf16"}
    assert not list(tmp_path.glob("*.part"))
