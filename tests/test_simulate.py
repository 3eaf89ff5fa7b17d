"""The simulator against sums done in the head, against queueing theory, and against its own conservation laws."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.analyse import predict
from lib.analyse.simulate import Engine, Work, simulate
from lib.analyse.steptimes import StepTimes, constant
from lib.analyse.traffic import Workload, closed_loop, percentile, poisson, steady, summary
from lib.errors import ConfigError, NoValue

STEP, PROMPT = 0.01, 0.05  # seconds of a decode step and of a prompt


def work(inputs, outputs, **how):
    return Work(np.array(inputs), np.array(outputs), **how)


def test_one_request_by_hand():
    trace = simulate(Engine(constant(STEP, PROMPT)), work([10], [3], clients=1))
    assert trace.first_s[0] == pytest.approx(PROMPT)
    assert trace.done_s[0] == pytest.approx(PROMPT + 2 * STEP)


def test_answer_of_one_token_ends_with_its_prompt():
    trace = simulate(Engine(constant(STEP, PROMPT)), work([10], [1], clients=1))
    assert trace.done_s[0] == trace.first_s[0] == pytest.approx(PROMPT)


def test_next_request_of_a_client_is_sent_when_the_last_one_is_answered():
    trace = simulate(Engine(constant(STEP)), work([1, 1], [5, 5], clients=1))
    assert trace.sent_s[1] == trace.done_s[0] == pytest.approx(5 * STEP)


def test_sequences_decode_together():
    trace = simulate(Engine(constant(STEP)), work([1] * 8, [10] * 8, clients=8))
    assert np.allclose(trace.done_s, 10 * STEP)


def test_a_prompt_stalls_decoding_only_when_prompts_go_first():
    """The second request arrives at 0.2 s, while the first decodes; its prompt takes 0.05 s."""
    load = work([10, 10], [40, 2], due_s=np.array([0.0, 0.2]))
    chunked = simulate(Engine(constant(STEP, PROMPT)), load)
    first = simulate(Engine(constant(STEP, PROMPT), policy="prefill_first"), load)
    assert chunked.gaps[:, 0].max() == pytest.approx(PROMPT)  # decoding rides along in the prompt's step
    assert first.gaps[:, 0].max() == pytest.approx(PROMPT + STEP)  # decoding waits for it


def test_long_prompts_are_cut_to_the_token_budget():
    trace = simulate(Engine(constant(STEP, PROMPT), token_budget=100), work([250], [1], clients=1))
    assert trace.first_s[0] == pytest.approx(3 * PROMPT)


def test_sequence_limit_makes_the_next_one_wait():
    trace = simulate(Engine(constant(STEP), max_seqs=1), work([1, 1], [5, 5], clients=2))
    assert trace.first_s[1] == pytest.approx(6 * STEP)


def test_memory_running_out_preempts_the_youngest_and_all_still_finish():
    trace = simulate(Engine(constant(STEP), kv_tokens=100), work([40, 40], [30, 30], clients=2))
    assert trace.preemptions == 1
    assert trace.done_s[1] > trace.done_s[0]
    assert trace.strides[:, 2].sum() == 60  # each token is given out once, though some are computed twice


def test_reserving_the_whole_answer_waits_instead():
    trace = simulate(Engine(constant(STEP), kv_tokens=100, admission="reserve"), work([40, 40], [30, 30], clients=2))
    assert trace.preemptions == 0
    assert trace.first_s[1] > trace.done_s[0]


def test_request_that_never_fits_is_refused():
    with pytest.raises(ConfigError, match="does not fit"):
        simulate(Engine(constant(STEP), kv_tokens=50), work([40], [30], clients=1))


def test_prefix_cache_spares_the_history_of_a_session():
    load = work([100, 160], [11, 11], clients=1, turns=2)
    assert simulate(Engine(constant(STEP), prefix_cache=True), load).cached_tokens == 110
    assert simulate(Engine(constant(STEP)), load).cached_tokens == 0


def test_prefix_cache_gives_way_to_running_requests():
    """Session 1's history (110 tokens) cannot stay beside session 2's request (2 x 110 > 200)."""
    load = work([100, 160, 100, 160], [11, 11, 11, 11], clients=2, turns=2)
    trace = simulate(Engine(constant(STEP), kv_tokens=200, prefix_cache=True), load)
    assert trace.cached_tokens < 2 * 110
    assert np.isfinite(trace.done_s).all()


def test_mean_wait_is_that_of_the_textbook_queue():
    """One sequence at a time, Poisson arrivals, equal answers: M/D/1, mean wait = load x service / (2 (1 - load))."""
    answer, load = 20, 0.7
    service = answer * STEP
    draw = np.random.default_rng(7)
    due = np.cumsum(draw.exponential(service / load, 30_000))
    trace = simulate(
        Engine(constant(STEP), max_seqs=1), work(np.ones(due.size, int), np.full(due.size, answer), due_s=due)
    )
    wait = (trace.first_s - trace.sent_s).mean() - STEP
    assert wait == pytest.approx(load * service / (2 * (1 - load)), rel=0.05)


def test_throughput_is_that_of_machine_repair():
    """N users who think exponentially, one server, exponential service: throughput = (1 - P(idle)) / service time."""
    users, think, mean = 6, 4.0, 100
    draw = np.random.default_rng(3)
    answers = draw.geometric(1 / mean, 20_000)
    load = work(np.ones(answers.size, int), answers, clients=users, think_s=draw.exponential(think, answers.size))
    trace = simulate(Engine(constant(STEP), max_seqs=1), load)
    service = mean * STEP
    terms = [1.0]
    for k in range(users):
        terms.append(terms[-1] * (users - k) * service / think)
    expected = (1 - 1 / sum(terms)) / service
    assert answers.size / trace.done_s.max() == pytest.approx(expected, rel=0.03)


def test_littles_law_holds_in_the_steady_window():
    load = closed_loop(Workload("w", 128, 64), 16, seed=1, per_client=40)
    samples = steady(simulate(Engine(constant(STEP, PROMPT)), load), load)
    assert samples.in_flight == pytest.approx(16, rel=0.01)
    residence = samples.ttft_s.mean() + (samples.tpot_s * 63).mean()
    assert samples.output_tok_s / 64 * residence == pytest.approx(16, rel=0.05)


def test_same_seed_same_answer():
    load = closed_loop(Workload("w", 128, 64), 8, seed=5)
    one, two = (simulate(Engine(constant(STEP, PROMPT)), load) for _ in range(2))
    assert np.array_equal(one.done_s, two.done_s)
    other = closed_loop(Workload("w", 128, 64), 8, seed=6)
    assert not np.array_equal(load.outputs, other.outputs)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nothing_is_lost_whatever_the_load(data):
    n = data.draw(st.integers(1, 25))
    inputs = data.draw(st.lists(st.integers(1, 300), min_size=n, max_size=n))
    outputs = data.draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    engine = Engine(
        constant(STEP, PROMPT),
        kv_tokens=data.draw(st.integers(400, 2000)),
        max_seqs=data.draw(st.integers(1, 8)),
        token_budget=data.draw(st.integers(16, 512)),
        policy=data.draw(st.sampled_from(["chunked", "prefill_first"])),
        admission=data.draw(st.sampled_from(["prompt", "reserve"])),
    )
    load = work(inputs, outputs, clients=data.draw(st.integers(1, 10)))
    trace = simulate(engine, load)
    assert trace.strides[:, 2].sum() == sum(outputs)
    assert (trace.sent_s <= trace.first_s).all() and (trace.first_s <= trace.done_s + 1e-12).all()
    assert trace.gaps[:, 1].sum() == sum(outputs) - n - trace.preemptions if trace.gaps.size else max(outputs) == 1


def test_thousand_requests_take_less_than_a_tenth_of_a_second():
    server = Engine(predict.step_times("vllm-bf16", 8))
    load = closed_loop(Workload("w", 1024, 128), 64, seed=0, per_client=1, least=1000)
    assert load.outputs.size == 1000
    simulate(server, load)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        simulate(server, load)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.1


def test_poisson_load_has_its_rate():
    load = poisson(Workload("w", 10, 10), 50.0, 20_000, seed=2)
    assert load.outputs.size / load.due_s[-1] == pytest.approx(50.0, rel=0.03)


def test_summary_pools_runs_and_keeps_the_burst_apart():
    load = closed_loop(Workload("w", 128, 64), 16, seed=1, per_client=9, least=0)
    table = summary([steady(simulate(Engine(constant(STEP, PROMPT), token_budget=256), load), load)] * 3)
    assert table["ttft_p95_burst_s"] > table["ttft_p95_s"] > table["ttft_p50_s"] > 0


def test_run_without_a_steady_part_is_refused():
    load = closed_loop(Workload("w", 10, 10), 8, seed=1, per_client=3, least=0)
    with pytest.raises(NoValue, match="steady"):
        steady(simulate(Engine(constant(STEP)), load), load)
    with pytest.raises(NoValue):
        percentile(np.array([np.nan]), 0.95)


def test_table_without_a_part_or_with_a_hole_is_refused():
    row = {"config": "x", "part": "chunk", "a": 1, "b": 0, "ms": 1.0}
    with pytest.raises(ConfigError, match="lacks"):
        StepTimes([row])
    rows = [{**row, "part": part} for part in ("chunk", "context", "attention")]
    holes = [{**row, "part": "decode", "a": a, "b": b} for a, b in ((1, 0), (2, 5))]
    with pytest.raises(ConfigError, match="holes"):
        StepTimes(rows + holes)


def test_step_times_interpolate_between_grid_points():
    flat = [{"config": "x", "part": part, "a": 1, "b": 0, "ms": 1.0} for part in ("context", "attention", "decode")]
    steps = StepTimes(
        [*flat, *({"config": "x", "part": "chunk", "a": a, "b": 0, "ms": ms} for a, ms in ((100, 10.0), (200, 30.0)))]
    )
    assert steps.mixed_s(150, 0.0, 0, 0.0) == pytest.approx(0.020)
    assert steps.mixed_s(300, 0.0, 0, 0.0) == pytest.approx(0.050)  # extended by the last slope
