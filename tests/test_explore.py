"""The notebook's explorer: the page's answers by widgets, records a click deeper, refusals in words, text escaped."""

import ast
import json
import re
import shutil
from html import unescape

import built
import pandas as pd
import pytest
from built import made_study

from lib import paths, records
from lib.analyse import asked, whatif
from lib.analyse.changes import changes
from lib.errors import RecordError
from lib.show import explore, explorer, figures


@pytest.fixture(scope="module")
def study(made):
    folder = made[1]
    return figures.Study(made_study(), folder / "tables", folder / "records", folder / "figures")


def shown(widget):
    """Everything below the controls."""
    return widget.children[-1].children


def words(widget):
    return re.sub(
        r"\s+",
        " ",
        " ".join(unescape(re.sub(r"<[^>]+>", " ", w.value)) for w in shown(widget) if isinstance(w.value, str)),
    )


def control(widget, description):
    return next(w for w in widget.children[:-1] if w.description.startswith(description))


def test_the_question_is_answered_as_in_the_page(study):
    widget = explore.question(study)
    block = explorer.described(asked.block(study.facts))
    question = whatif.stated(block["works"][0])
    for text, _ in explorer.said(whatif.answer(block, question), question, block["works"][0]):
        assert text.strip() in words(widget)
    before = words(widget)
    control(widget, "First token").value = 10.0
    assert words(widget) != before and "no contender keeps it" in words(widget)
    assert shown(widget)[-1].value[:4] == b"\x89PNG"


def test_another_work_restates_the_promise(study):
    widget = explore.question(study)
    work = control(widget, "Machine")
    work.value = next(o for o in work.options if "headline" in o)
    assert control(widget, "First token").value == 180 and control(widget, "At once").value == 50
    assert "On 8 x H100" in words(widget)


def test_a_floor_of_quality_filters_as_in_the_page(made, study, tmp_path):
    unscored = explore.question(study)
    assert control(unscored, "Same next token").disabled and "There is no floor of quality to set" in words(unscored)
    folder = built.judged(made, tmp_path)[1]
    judged = figures.Study(study.config, folder / "tables", folder / "records", folder / "figures")
    widget = explore.question(judged)
    control(widget, "First token").value, control(widget, "Then a token").value = 10_000.0, 1000.0
    assert "vLLM-CPU bf16 keeps it on one node" in words(widget)
    control(widget, "Same next token").value = 75.0
    assert "vLLM-CPU bf16 keeps it" not in words(widget)
    assert "same next token is below 75 % even at its upper limit" in words(widget)


def test_records_newer_than_the_tables_are_told_and_not_mixed_with_them(study, tmp_path):
    folder = shutil.copytree(study.folder, tmp_path / "records")
    record = records.read(folder / "vllm-bf16.parquet")
    records.write(record.path, record.table, record.meta | {"ended_utc": "2025-02-02T00:00:00Z"})
    newer = figures.Study(study.config, study.tables, folder, study.figures)
    assert study.outdated == "" and "older than vllm-bf16.parquet" in words(explore.question(newer))
    told = words(explore.distributions(newer))
    assert "vllm-bf16.parquet is another file now. Run `make report`" in told
    with pytest.raises(RecordError, match="is another file now"):
        figures.draw(newer, "ttft_distribution")


def test_a_study_without_tables_says_so_in_every_widget(study, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REPORT", tmp_path / "report")
    (tmp_path / "report" / "tables" / "smoke").mkdir(parents=True)
    (tmp_path / "report" / "tables" / "smoke" / "facts.json").write_text("{}")
    bare = figures.Study(study.config, tmp_path, study.folder, study.figures)
    for make in (explore.question, explore.requests, explore.distributions, explore.pair):
        assert "has no facts.json" in words(make(bare)) and "Studies that have it: smoke." in words(make(bare))


def test_every_cell_of_the_notebook_runs(study, monkeypatch):
    """The notebook as it stands, cell by cell, on a study that is built."""
    monkeypatch.setattr(figures, "load", lambda profile, depth: study)
    cells = json.loads((paths.NOTEBOOKS / "07_explore.ipynb").read_text())["cells"]
    names, widgets = {}, []
    for cell in (c for c in cells if c["cell_type"] == "code"):
        *body, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(body, []), "07_explore", "exec"), names)
        if isinstance(last, ast.Expr):
            widgets.append(eval(compile(ast.Expression(last.value), "07_explore", "eval"), names))
        else:
            exec(compile(ast.Module([last], []), "07_explore", "exec"), names)
    assert len(widgets) == 4 and all(shown(widget) for widget in widgets)


def test_nothing_selected_says_so(study):
    widget = explore.question(study)
    control(widget, "Engines").value = ()
    assert "No contender is selected" in words(widget)
    spread = explore.distributions(study)
    control(spread, "Launches").value = ()
    assert words(spread).strip() == "Nothing is selected: choose at least one launch and a level."
    both = explore.pair(study)
    control(both, "B").value = control(both, "A").value
    assert "choose two different launches" in words(both)


def test_requests_of_any_taking(study):
    widget = explore.requests(study)
    assert [w.value[:4] for w in shown(widget)[:2]] == [b"\x89PNG", b"\x89PNG"]
    taking = control(widget, "Taking")
    assert [label for label, _ in taking.options] == ["run 0, repeat 0", "run 0, repeat 1"]
    first = shown(widget)[-1].value
    taking.value = (0, 1)
    assert shown(widget)[-1].value != first and "<table" in first


def test_distributions_follow_the_selection(study):
    widget = explore.distributions(study)
    one = shown(widget)[0].value
    control(widget, "Metric").value = "tpot_s"
    assert shown(widget)[0].value != one


def test_a_damaged_record_is_said_in_words(study, tmp_path):
    broken = figures.Study(study.config, study.tables, tmp_path, study.figures)
    assert "There is no record" in words(explore.distributions(broken))


def test_a_pair_has_intervals_and_the_floor(study):
    widget = explore.pair(study)
    control(widget, "A").value, control(widget, "B").value = "vllm-bf16", "llamacpp-q4_0"
    text = words(widget)
    assert "llamacpp-q4_0 over vllm-bf16" in text and "Noise floor: Time to first token, median" in text
    assert re.search(r"\d to \d", text) and "95 % interval" in text


def test_the_floor_turns_a_small_change_down():
    def run(shift):
        return pd.DataFrame([
            {"launch": "a", "run": 0, "repeat": i, "level": "closed-1", "kind": "closed", "workload": "news",
             "ttft_p50_s": 0.1 * shift * (1 + 0.0001 * i), "tpot_p50_s": 0.01, "output_tok_s": 100.0}
            for i in range(4)
        ])  # fmt: skip

    by = {c.metric: c for c in changes(run(1.0), run(1.5), [("a", "a")], {"ttft_p50_s": 0.1})}
    assert by["ttft_p50_s"].why is None and by["ttft_p50_s"].ratio == pytest.approx(1.5)
    assert by["tpot_p50_s"].why == "chance" and by["tpot_p50_s"].before == pytest.approx(0.01)
    small = {c.metric: c for c in changes(run(1.0), run(1.05), [("a", "a")], {"ttft_p50_s": 0.1})}
    assert small["ttft_p50_s"].why == "floor"
    with pytest.raises(RecordError, match="no column kind"):
        changes(run(1.0).drop(columns="kind"), run(1.0), [], {})


def test_pairs_of_one_run_are_compared_as_its_facts_compare_them(study):
    takings = pd.read_csv(study.tables / "takings.csv")
    facts = {(c["a"], c["b"], c["level"], c["metric"]): c["ratio"]["value"] for c in study.facts["comparisons"]}
    found = changes(takings, takings, [("vllm-bf16", "llamacpp-q4_0")], {})
    known = [(c, facts.get((c.b, c.a, c.level, c.metric))) for c in found]
    assert known and all(c.ratio == pytest.approx(value, rel=1e-6) for c, value in known if value is not None)
    assert sum(value is not None for _, value in known) >= 4


def test_the_notebook_calls_what_there_is():
    cells = json.loads((paths.NOTEBOOKS / "07_explore.ipynb").read_text())["cells"]
    code = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    for name in re.findall(r"explore\.(\w+)\(", code):
        assert callable(getattr(explore, name))
    assert "07_explore" not in (paths.ROOT / "Makefile").read_text().split("##@ The rules")[1]
