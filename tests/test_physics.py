"""Bounds that a reader can check with a pocket calculator, and the invariant that nothing predicted beats them."""

import pytest

from lib.analyse import agreement, cheapest, physics, predict, published
from lib.analyse.capacity import Target
from lib.analyse.physics import Bound, Format, Machine, Model, Node
from lib.analyse.traffic import Workload
from lib.errors import ConfigError

LLAMA, H100 = "meta-llama/Meta-Llama-3-70B-Instruct", "H100-SXM-80GB"
TOY = Model(layers=1, hidden=10, intermediate=20, heads=2, kv_heads=1, head_dim=5, vocab=100, tied_embeddings=False)
BOX = Machine(memory_bytes=1e6, memory_bytes_s=1e4, linear_flop_s=1e5, other_flop_s=1e5, link_bytes_s=1e3)


def test_toy_weights_by_hand():
    # QKV 10 x (2 + 2) x 5 = 200, output 10 x 10 = 100, MLP 3 x 10 x 20 = 600
    assert TOY.linear_params == 900
    assert TOY.params == 900 + 2 * 1000 + 3 * 10


def test_toy_decode_step_by_hand():
    limit = Bound(TOY, BOX, Format(2, 2, 2), tp=1)
    # bytes: 2 x (900 + 1000) weights + 20 per token x (7 cached + 1 new); FLOP: 2 x 900 + 2 x 1000 + 4 x 2 x 5 x 7
    assert limit.kv_bytes_per_token() == 20
    assert limit.decode_step_s(1, 7) == pytest.approx((3800 + 160) / 1e4)
    assert limit.decode_step_s(1000, 7) == pytest.approx(1000 * (1800 + 2000 + 280) / 1e5)  # now the FLOP decide


def test_all_reduce_by_hand():
    limit = Bound(TOY, BOX, Format(2, 2, 2), tp=2)
    assert limit.allreduce_bytes(1) == 2 * 1 * 0.5 * 10 * 2
    assert limit.allreduce_bytes(3) == 3 * limit.allreduce_bytes(1)
    assert Bound(TOY, BOX, Format(2, 2, 2), tp=1).allreduce_bytes(1) == 0


def test_kv_capacity_by_hand():
    limit = Bound(TOY, BOX, Format(2, 2, 2), tp=1)
    weights = 2 * (900 + 2 * 1000)
    assert limit.kv_capacity_tokens(share=0.5) == pytest.approx((5e5 - weights) / 20)
    assert limit.sessions_that_fit(1000, share=0.5) == int((5e5 - weights) / 20 / 1000)
    assert limit.kv_capacity_tokens(share=0.001) == 0


def test_link_overlaps_with_the_rest():
    slow = Machine(memory_bytes=1e6, memory_bytes_s=1e9, linear_flop_s=1e9, other_flop_s=1e9, link_bytes_s=10)
    assert Bound(TOY, slow, Format(2, 2, 2), tp=2).decode_step_s(1, 0) == pytest.approx(20 / 10)  # the link alone


def test_node_takes_the_best_layout_metric_by_metric():
    node = physics.node(LLAMA, H100, 8, "fp8")
    layouts = [(physics.bound(LLAMA, H100, tp, "fp8"), 8 // tp) for tp in (1, 2, 4, 8)]
    assert node.prefill_s(1024) == min(limit.prefill_s(1024) for limit, _ in layouts)
    for load in (1, 64, 256):
        for limit, n in layouts[1:]:
            used = min(n, load)
            if limit.sessions_that_fit(2048) >= load / used:
                assert node.throughput_tok_s(1024, 128, load) >= used * limit.throughput_tok_s(1024, 128, load / used)
    assert node.sessions_that_fit(8192) == max(n * limit.sessions_that_fit(8192) for limit, n in layouts)


def test_node_serves_no_more_than_its_cache_holds():
    node = physics.node(LLAMA, H100, 2, "bf16")
    assert node.throughput_tok_s(4096, 512, 1e6) == pytest.approx(node.throughput_tok_s(4096, 512, 1e5))
    with pytest.raises(ConfigError, match="do not fit on 1 x H100"):
        physics.node(LLAMA, H100, 1, "bf16")


TOY_NODE = Node(((Bound(TOY, BOX, Format(2, 2, 2), tp=1), 1),))  # a step sweeps 3,800 bytes at 1e4 bytes/s
WORK = Workload("w", 10, 11, spread=0.0)


def test_most_output_under_an_sla_by_hand():
    # bytes of a step with b sequences of 10 tokens: 3800 + 20 x 11 b, at 1e4/s. A step of 0.6 s holds 10 sequences,
    # whose throughput is then the limit.
    limit = TOY_NODE.splits[0][0]
    assert limit.decode_step_s(10, 10) == pytest.approx(0.6)
    assert cheapest.most_tok_s(TOY_NODE, WORK, Target(9e9, 600, 100)) == pytest.approx(
        limit.throughput_tok_s(10, 11, 10), rel=1e-6
    )
    at_all = cheapest.most_tok_s(TOY_NODE, WORK, Target(9e9, 9e9, 100))
    some = cheapest.most_tok_s(TOY_NODE, WORK, Target(9e9, 600, 50))  # half of all requests may wait
    assert some == pytest.approx(2 / (1 / limit.throughput_tok_s(10, 11, 10) + 1 / at_all))


def test_an_sla_below_what_one_request_needs_has_no_bound():
    limit = TOY_NODE.splits[0][0]
    read, step = limit.prefill_s(10) * 1e3, limit.decode_step_s(1, 10) * 1e3
    assert cheapest.most_tok_s(TOY_NODE, WORK, Target(1.01 * read, 1.01 * step)) > 0
    for strict in (Target(0.99 * read, 9e9), Target(9e9, 0.99 * step)):
        assert cheapest.most_tok_s(TOY_NODE, WORK, strict) != cheapest.most_tok_s(TOY_NODE, WORK, strict)  # NaN
        assert cheapest.lowest_usd_per_million(TOY_NODE, WORK, strict, 10) != 0
    usd = cheapest.lowest_usd_per_million(TOY_NODE, WORK, Target(9e9, 9e9), 36)
    assert usd == pytest.approx(36e6 / 3600 / cheapest.most_tok_s(TOY_NODE, WORK, Target(9e9, 9e9)))


def test_no_simulated_point_of_others_beats_its_bound():
    for point in agreement.per_point(published.references()):
        for value in (point["published"], point["predicted"]):
            if value == value:
                beyond = value < point["bound"] if point["unit"] == "ms" else value > point["bound"]
                assert not beyond, point["id"]


def test_llama_70b_has_its_known_size():
    limit = physics.bound(LLAMA, H100, 8, "bf16")
    assert limit.model.params == 70_553_706_496
    assert limit.kv_bytes_per_token() == 327_680


@pytest.mark.parametrize(("precision", "floor_ms"), [("bf16", 5.19), ("fp8", 2.64), ("int4", 1.41)])
def test_weight_floor_of_a_decode_step(precision, floor_ms):
    assert physics.bound(LLAMA, H100, 8, precision).decode_step_s(1, 0) * 1e3 == pytest.approx(floor_ms, abs=0.01)


def test_tied_head_counts_once():
    assert physics.host_bound("HuggingFaceTB/SmolLM2-135M-Instruct", "bf16", 1e10, 1e11).model.params == 134_515_008


def test_host_bound_is_bandwidth_for_one_sequence():
    limit = physics.host_bound("HuggingFaceTB/SmolLM2-135M-Instruct", "bf16", 10e9, 1e15)
    swept = 2 * (limit.model.linear_params + limit.model.head_params) + limit.kv_bytes_per_token()
    assert limit.decode_step_s(1, 0) == pytest.approx(swept / 10e9)


def test_more_of_anything_never_raises_a_bound():
    limit = physics.bound(LLAMA, H100, 8, "fp8")
    assert limit.prefill_s(2048) > limit.prefill_s(1024) > limit.prefill_s(128)
    assert limit.prefill_s(128, cached_tokens=4096) > limit.prefill_s(128)
    assert limit.decode_step_s(64, 2000) > limit.decode_step_s(64, 1000) > limit.decode_step_s(1, 1000)
    assert limit.throughput_tok_s(1024, 128, 64) > limit.throughput_tok_s(1024, 128, 8)
    assert limit.throughput_tok_s(2048, 128, 64) < limit.throughput_tok_s(1024, 128, 64)


def test_unknown_names_say_what_exists():
    with pytest.raises(ConfigError, match=r"no model 'gpt'.*Meta-Llama-3-70B"):
        physics.bound("gpt", H100, 8, "bf16")
    with pytest.raises(ConfigError, match=r"no GPU 'B900'.*H100"):
        physics.bound(LLAMA, "B900", 8, "bf16")
    with pytest.raises(ConfigError, match=r"no precision 'fp3'.*fp8"):
        physics.bound(LLAMA, H100, 8, "fp3")
    with pytest.raises(ConfigError, match="no fp8 matrix rate"):
        physics.bound(LLAMA, "A100-SXM-80GB", 8, "fp8")
    with pytest.raises(ConfigError, match="at least 1"):
        physics.bound(LLAMA, H100, 0, "bf16")
    with pytest.raises(ConfigError, match="above zero"):
        physics.host_bound("HuggingFaceTB/SmolLM2-135M-Instruct", "bf16", 0, 1e9)


def limit_of(row):
    tp, replicas = predict.LAYOUTS[row["layout"]]
    return physics.bound(LLAMA, H100, tp, row["precision"]), replicas


def predictions():
    return predict.records(predict.load())


def test_no_prediction_beats_its_bound():
    workloads = {w.name: w for w in predict.WORKLOADS}
    rows = [row for row in predictions() if not row["reason"]]
    assert len(rows) > 1000
    for row in rows:
        limit, replicas = limit_of(row)
        new = workloads[row["workload"]].turn_isl or row["isl"]  # of a session at least the newest message is prefilled
        each = row["concurrency"] / min(replicas, row["concurrency"])
        most = min(replicas, row["concurrency"]) * limit.throughput_tok_s(new, row["osl"], each)
        where = {key: row[key] for key in ("config", "layout", "workload", "concurrency")}
        assert row["output_tok_s"] <= most, where
        assert row["ttft_p50_s"] >= limit.prefill_s(new), where
        assert row["tpot_mean_s"] >= limit.decode_step_s(1, row["isl"]), where


def test_no_step_time_beats_its_bound():
    for name, who in predict.meta()["contenders"].items():
        for tp in (8, 4, 2):
            limit = physics.bound(LLAMA, H100, tp, who["precision"])
            for row in predict._table()[name, tp]:
                if row["part"] == "decode":
                    assert row["ms"] / 1e3 >= limit.decode_step_s(row["a"], row["b"]), (name, tp, row)
                elif row["part"] == "chunk":
                    prompts = max(1, round(row["a"] / 128))
                    assert row["ms"] / 1e3 >= limit.prefill_s(row["a"] / prompts, 0, prompts), (name, tp, row)
