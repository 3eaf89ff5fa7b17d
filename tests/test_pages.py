"""The pages beside the article (contest a number, two runs compared, a notebook as executed) as a reader opens them."""

import copy
import re

import accessibility
import nbformat
import pandas as pd
import pytest
from built import made_study
from nbformat import v4

from lib import paths
from lib.errors import RecordError
from lib.publish import appendix, compare, site, verify
from lib.show import figures

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCRIPT = "<script>window.entered = 1</script><img src=x onerror='window.entered = 1'>"


def output(**data):
    return v4.new_output("execute_result", {key.replace("_", "/"): value for key, value in data.items()})


def executed(*outputs, source="tables.show('levels')"):
    """A notebook as papermill leaves it."""
    words = "# 05 Tables\n\nSee [figures](06_figures.ipynb), [the lab](07_explore.ipynb) and $x$."
    cell = v4.new_code_cell(source, execution_count=1, outputs=list(outputs))
    return v4.new_notebook(cells=[v4.new_markdown_cell(words), cell])


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """build/<study>: two notebooks, and what a failure leaves."""
    folder = tmp_path_factory.mktemp("build")
    table = pd.DataFrame({"launch": [SCRIPT], "a column that is wide": [1.5]}).to_html()
    said = v4.new_output("stream", name="stdout", text=f"{paths.ROOT}/records: \x1b[31mred\x1b[0m {SCRIPT}")
    shown = [output(text_html=table + SCRIPT, text_plain="t"), output(image_png=DOT, text_plain="p"), said]
    shown.append(output(application_javascript="window.entered = 1", text_plain="script"))
    nbformat.write(executed(*shown), folder / "05_tables.ipynb")
    nbformat.write(executed(), folder / "06_figures.ipynb")
    nbformat.write(executed(), folder / "06_figures.failed.ipynb")
    return folder


@pytest.fixture(scope="module")
def published(made, build, tmp_path_factory):
    study = figures.Study(made_study(), made[1] / "tables", made[1] / "records", made[1] / "figures")
    return site.publish(study, tmp_path_factory.mktemp("out") / "site", manifest=False, build=build).folder


@pytest.fixture(scope="module")
def compared(made, tmp_path_factory):
    """A page of two runs that differ."""
    takings = pd.read_csv(made[1] / "tables" / "takings.csv")
    other = copy.deepcopy(made[0])
    other["launches"]["vllm-bf16"]["versions"]["engine"] = "vllm 2"
    slower = takings.assign(ttft_p50_s=takings["ttft_p50_s"] * 2)
    out = tmp_path_factory.mktemp("compare") / "compare.html"
    compare.compare(compare.Run("a", made[0], takings), compare.Run("b", other, slower), out)
    return out


@pytest.fixture(scope="module")
def tab():
    with accessibility.browser_or_skip("the pages beside the article are not opened") as of:
        yield of


def test_notebooks_become_pages_that_load_and_run_nothing(published, tab):
    names = {path.name for path in (published / "notebooks").iterdir()}
    assert names == {"05_tables.html", "06_figures.html"}
    text = (published / "notebooks" / "05_tables.html").read_text()
    assert "<script" not in text and "onerror=" not in re.sub(r"&lt;.*?&gt;", "", text) and "<style scoped" not in text
    assert str(paths.ROOT) not in text and "default-src 'none'" in text
    assert 'href="06_figures.html"' in text and "07_explore.html" not in text and "the lab" in text
    assert f'src="data:image/png;base64,{DOT}"' in text and "Picture made by: tables.show" in text
    assert "a column that is wide" in text and "tables.show" in text
    tab.errors.clear()
    tab.requests.clear()
    tab.open(published / "notebooks" / "05_tables.html")
    assert tab.run("window.entered === undefined") and tab.errors == [] and tab.requests == []


def test_a_site_with_notebooks_holds_and_leads_to_them(published):
    assert 'notebooks/05&#95;tables.html' in (published / "index.html").read_text()
    assert verify.verify(published)[1] == []
    page = published / "notebooks" / "06_figures.html"
    whole = page.read_text()
    page.write_text(whole.replace("../index.html#notebooks", "../index.html#nowhere"))
    wrong = " / ".join(verify.verify(published)[1])
    page.write_text(whole)
    assert "06_figures.html links to ../index.html#nowhere, an anchor that is not there" in wrong


def test_what_is_no_notebook_is_refused(tmp_path):
    for text in ("{", "[]", "{}"):
        (tmp_path / "x.ipynb").write_text(text)
        with pytest.raises(RecordError, match="is no notebook"):
            appendix.page(tmp_path / "x.ipynb", {}, "t")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["index.html", "about.html", "notebooks/05_tables.html", "compare"])
def test_an_accessibility_checker_finds_nothing(published, compared, tab, name, dark):
    tab.view(1280, 900, dark=dark)
    tab.open(compared if name == "compare" else published / name)
    assert accessibility.violations(tab) == []


@pytest.mark.parametrize("name", ["about.html", "notebooks/05_tables.html", "compare"])
def test_a_telephone_shows_all_of_it(published, compared, tab, name):
    tab.view(360, 800)
    tab.open(compared if name == "compare" else published / name)
    assert tab.run("document.documentElement.scrollWidth") <= 360


def test_a_shared_link_has_a_title_words_and_a_picture_that_is_there(published):
    text = (published / "index.html").read_text()
    said = dict(re.findall(r'<meta (?:name|property)="((?:og|twitter):[\w:]+|description)" content="([^"]*)"', text))
    wanted = {"og:title", "og:description", "og:image", "og:image:alt", "og:type", "twitter:card", "description"}
    assert wanted <= set(said)
    assert (published / said["og:image"]).read_bytes()[:4] == b"\x89PNG" and len(said["og:description"]) > 40
