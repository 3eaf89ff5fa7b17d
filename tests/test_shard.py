"""The shard probe on tiny shapes of this computer, and its record against predictions by hand."""

import json

import pandas as pd
import pytest

from lib.analyse import shards
from lib.errors import MeasureError, RecordError
from lib.measure import shard

TINY = shard.Shard(hidden=256, heads=2, kv_heads=1, head_dim=64, intermediate=128)
POINT = {"precision": "bf16", "phase": "decode", "batch": 64, "context": 1024}


def record(**us):
    rows = [{**POINT, "operator": name, "kernel": "k", "us": value, "reason": ""} for name, value in us.items()]
    return {"gpu": "NVIDIA H200", "rows": rows}


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


def test_step_keeps_the_predicted_all_reduce():
    operators = shards.by_operator(record(qkv=10), predicted(qkv=1.0, all_reduce=0.5, head=0.1))
    step = shards.by_step(operators).iloc[0]
    assert step["measured_ms"] == pytest.approx(0.8 + 0.6)
    assert step["predicted_ms"] == pytest.approx(1.6)


def test_operator_that_was_not_timed_leaves_no_measured_step():
    operators = shards.by_operator(record(qkv=None), predicted(qkv=1.0, all_reduce=0.5))
    assert pd.isna(shards.by_step(operators).iloc[0]["measured_ms"])


def test_gpu_without_predictions_is_refused():
    with pytest.raises(RecordError, match=r"RTX 4090.*H200-SXM-141GB"):
        shards.by_operator({**record(qkv=1), "gpu": "NVIDIA RTX 4090"}, predicted(qkv=1.0))


def test_committed_operator_times_know_both_gpus_apart():
    table = shards.operator_times()
    decode = table[(table["phase"] == "decode") & (table["operator"] == "gate_up") & (table["config"] == "vllm-bf16")]
    by_point = decode.pivot_table(index="batch", columns="gpu", values="ms")
    # one sequence: the weights decide, read at 4.8 instead of 3.35 TB/s
    assert by_point.loc[1, "H200-SXM-141GB"] < by_point.loc[1, "H100-SXM-80GB"]


def test_machine_without_torch_or_cuda_is_refused():
    with pytest.raises(MeasureError, match=r"torch is not installed|no CUDA GPU"):
        shard.probe()


def test_probe_runs_tiny_shapes_on_the_cpu(tmp_path):
    pytest.importorskip("torch")
    taken = shard.probe(TINY, batches=(1, 3), contexts=(16,), prompts=(32,), device="cpu", copies=1)
    assert len(taken["rows"]) == 3 * 3 * 7
    assert all(row["us"] > 0 or row["reason"] for row in taken["rows"])
    assert {row["precision"] for row in taken["rows"] if row["us"]} >= {"bf16"}
    kept = shard.write(taken, tmp_path)
    assert json.loads(kept.read_text())["mark"] == shard.MARK
    assert not list(tmp_path.glob("*.part"))
