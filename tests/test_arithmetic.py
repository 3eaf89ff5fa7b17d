"""Little's law over the article's rows: numbers a reader can redo on paper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.analyse import arithmetic, published
from lib.errors import NoValue

SLA = {"ttft_ms": 180, "inter_token_latency_ms": 25, "concurrent_requests": 50}


def rows():
    return {row["id"]: row for row in published.claims()["rows"]}


def test_implied_latency_by_hand():
    # 10 in flight, 100 tok/s, 11 tokens each: 1.1 s in the system, 0.1 s of it TTFT, 10 gaps of 0.1 s
    assert arithmetic.implied_itl_ms(10, 100, 11, 100) == pytest.approx(100)


@given(st.floats(1, 500), st.floats(10, 1e5), st.integers(2, 4000), st.floats(1, 1000))
def test_concurrency_and_latency_are_inverse(n, tok_s, length, ttft):
    itl = arithmetic.implied_itl_ms(n, tok_s, length, ttft)
    if itl > 0:
        assert arithmetic.concurrency_at_itl(itl, tok_s, length, ttft) == pytest.approx(n, rel=1e-6)


@pytest.mark.parametrize(
    ("row", "itl_256", "itl_16", "most"),
    [("vllm-fp16", 44, 32, 36.7), ("vllm-awq", 44, 36, 55.7), ("trtllm-fp8", 33, 28, 97.6)],
)
def test_the_articles_rows(row, itl_256, itl_16, most):
    readings = {r["output_tokens"]: r for r in arithmetic.row_readings(rows()[row], SLA)}
    assert round(readings[256]["implied_itl_ms"]) == itl_256
    assert round(readings[16]["implied_itl_ms"]) == itl_16
    assert readings[256]["concurrency_at_itl_limit"] == pytest.approx(most, abs=0.05)
    assert not any(r["meets_itl"] for r in readings.values())


def test_longest_answer_within_is_where_the_limit_is_met():
    row = rows()["trtllm-fp8"]
    length = arithmetic.longest_answer_within(25, row["max_concurrent"], row["output_tok_s"], row["ttft_p95_ms"])
    assert arithmetic.implied_itl_ms(row["max_concurrent"], row["output_tok_s"], 10, row["ttft_p95_ms"]) < 25
    assert arithmetic.implied_itl_ms(row["max_concurrent"], row["output_tok_s"], 11, row["ttft_p95_ms"]) > 25
    assert 10 < length < 11
    assert arithmetic.longest_answer_within(25, 10, 1000, 100) is None


def test_price_ratio_is_the_throughput_ratio_on_one_node():
    data = rows()
    assert arithmetic.price_ratio(
        data["trtllm-fp8"]["output_tok_s"], data["vllm-fp16"]["output_tok_s"]
    ) == pytest.approx(2.711, abs=1e-3)
    assert arithmetic.price_ratio(200, 100, price=20, other_price=10) == 1


def test_cost_of_a_million_tokens_by_hand():
    # 36 USD an hour over 10,000 tok/s = 36 million tokens an hour
    assert arithmetic.usd_per_million_tokens(36, 10_000) == pytest.approx(1.0)


def test_what_would_make_a_row_true():
    facts = {r["reading"].split(":")[0]: r["value"] for r in arithmetic.true_if(rows()["vllm-fp16"], SLA)}
    assert facts["long answers"] == pytest.approx(35.5)  # 1420 tok/s x 25 ms
    assert facts["long answers at the stated maximum concurrency"] == pytest.approx(2560)


def test_refusals():
    with pytest.raises(NoValue, match="2 tokens"):
        arithmetic.implied_itl_ms(1, 1, 1, 1)
    with pytest.raises(NoValue, match="above zero"):
        arithmetic.usd_per_million_tokens(36, 0)
