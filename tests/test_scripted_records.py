"""A study whose records and settings are full of scripts: its page, site, comparison and widgets show them as text."""

import dataclasses
import html
import re

import accessibility
import built
import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
import pytest
import synthetic

from lib import records
from lib.analyse import tables
from lib.publish import compare, site
from lib.show import explore, figures

pytestmark = pytest.mark.slow
EVIL = "</script><script>window.entered = 1</script><img src=x onerror='window.entered = 1'>"


def meta():
    """Everything a record says of its launch in words."""
    return built.PROBE | {
        "machine": {"cpu": EVIL, "cores": 2, "memory_bytes": 24e9, "kernel": EVIL, "os": EVIL, "flags": [EVIL]}
        | {"gpus": []},
        "versions": {"python": EVIL, "engine": f"vllm {EVIL}", "packages": {EVIL: EVIL}},
        "git": {"commit": EVIL, "dirty": True},
        "proof": [{"what": EVIL, "expected": EVIL, "found": EVIL, "source": EVIL, "ok": True}],
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evil")
    plain = built.made_study()
    of = plain.model_copy(
        update={
            "title": EVIL,
            "hardware": plain.hardware.model_copy(update={"name": EVIL, "note": EVIL}),
            "model": plain.model.model_copy(update={"name": EVIL, "note": EVIL}),
            "sla": plain.sla.model_copy(update={"reason": EVIL}),
            "price": plain.price.model_copy(update={"source": EVIL}),
            "workloads": {"news": plain.workloads["news"].model_copy(update={"reads_like": EVIL})},
        }
    )
    servers = [dataclasses.replace(s, extra=meta(), failed=1, incomplete=EVIL) for s in built.SERVERS]
    synthetic.write_study(folder / "records", of, servers, absent={"vllm-fp8": EVIL})
    for server in servers:
        record = records.read(folder / "records" / f"{server.name}.parquet")
        table = record.table
        for name in ("request_id", "cause", "finish_reason", "text_hash", "prompt_hash"):
            column = [value and EVIL for value in table[name].to_pylist()]
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(column, pa.string()))
        records.write(record.path, table, record.meta)
    tables.build(of, folder / "records", folder / "tables")
    made = figures.Study(of, folder / "tables", folder / "records", folder / "figures")
    for name in figures.FIGURES:
        figures.draw(made, name)
        plt.close("all")
    return made


@pytest.fixture(scope="module")
def published(study, tmp_path_factory):
    return site.publish(study, tmp_path_factory.mktemp("out") / "site", manifest=False).folder


def test_no_page_runs_or_loads_any_of_it(study, published, tmp_path):
    run = compare.Run(EVIL, study.facts, pd.read_csv(study.tables / "takings.csv"))
    compare.compare(run, dataclasses.replace(run, name="b"), tmp_path / "compare.html")
    with accessibility.browser_or_skip("no page full of scripts is opened") as tab:
        for page in (published / "index.html", published / "about.html", tmp_path / "compare.html"):
            text = page.read_text()
            assert "<script>window" not in text and "<img" not in text, page.name
            tab.open(page)
            tab.run('for (const e of document.querySelectorAll("details")) e.open = true')
            assert tab.run("window.entered === undefined") and tab.errors == [] and tab.requests == [], page.name
            read = tab.run("document.body.textContent")
            assert "window.entered = 1</script>" in read, page.name


def test_no_widget_shows_any_of_it_as_markup(study):
    for widget in (explore.question(study), explore.requests(study), explore.distributions(study), explore.pair(study)):
        texts = [w.value for w in widget.children[-1].children if isinstance(w.value, str)]
        assert not re.search(r"<(script|img)", " ".join(texts))
    asked = explore.requests(study).children[-1].children
    assert EVIL in html.unescape(asked[-1].value) or "request" in html.unescape(asked[-2].value)
