"""A site that stands by itself: whole, held against its facts, honest about what is absent; two runs side by side."""

import copy
import hashlib
import html
import json
import re
import shutil
import tarfile

import pandas as pd
import pytest
import yaml
from built import made_study

from lib import paths, records
from lib.errors import ConfigError, RecordError
from lib.publish import compare, site, verify
from lib.show import browser, figures


@pytest.fixture(scope="module")
def study(made):
    folder = made[1]
    return figures.Study(made_study(), folder / "tables", folder / "records", folder / "figures")


@pytest.fixture(scope="module")
def published(study, tmp_path_factory):
    """A site without manifest, whose library has an environment of its own."""
    return site.publish(study, tmp_path_factory.mktemp("out") / "site", "https://example.org/x/", manifest=False)


@pytest.fixture
def copied(published, tmp_path, monkeypatch):
    """A copy to spoil, checked without a browser."""
    monkeypatch.setattr(verify, "_opens", lambda site: [])
    return shutil.copytree(published.folder, tmp_path / "site")


def wrong(folder):
    return " / ".join(verify.verify(folder)[1])


def test_everything_a_host_needs_is_there(published):
    names = set(site.listed(published.folder))
    assert {"index.html", "about.html", "CITATION.cff", "LICENSE", "LICENSE-DATA", "tables/facts.json"} <= names
    assert {f"figures/{n}.{kind}" for n in figures.FIGURES for kind in ("svg", "png")} <= names
    assert {"records/vllm-bf16.parquet", "records/vllm-bf16.parquet.sha256"} <= names
    if browser.find():
        assert (published.folder / "article.pdf").read_bytes()[:5] == b"%PDF-"
    else:
        assert "article.pdf" in published.absent
    text = (published.folder / "index.html").read_text()
    card = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)"', html.unescape(text)))
    assert card["image"] == "https://example.org/x/figures/headline.png" and len(card["description"]) > 40
    assert 'href="about.html"' in text


def test_what_was_published_holds(published):
    held, problems = verify.verify(published.folder)
    assert problems == []
    assert held[:5] == ["checksums", "records behind the facts", "links", "numbers", "the page as its facts give it"]
    assert len(held) == 6


def test_the_archive_is_the_site_and_the_same_every_time(published, tmp_path):
    archive = published.archive
    said = archive.with_name(archive.name + ".sha256").read_text().split()[0]
    assert said == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        assert {m.name.partition("/")[2] for m in tar} == {*site.listed(published.folder), site.SUMS}
    again = site._archive(published.folder, tmp_path / archive.name)
    assert again.read_bytes() == archive.read_bytes()


def test_a_changed_number_is_found(copied):
    page = copied / "index.html"
    text = page.read_text()
    value = re.search(r'<td class="num" title="measured[^"]*">([\d.,]+)<', text)
    page.write_text(text[: value.start(1)] + "98.7" + text[value.end(1) :])
    told = wrong(copied)
    assert "index.html differs from its checksum" in told and "'98.7' (measured" in told and "given by no fact" in told
    assert "rendered again, the page is another" in told


def test_a_changed_level_of_the_explorer_is_found(copied):
    page = copied / "index.html"
    text = page.read_text()
    start = text.index('id="explorer-data"')
    page.write_text(text[:start] + text[start:].replace('"failed":0', '"failed":9', 1))
    assert "the explorer's data are not those of the facts" in wrong(copied)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda s: (s / "records/vllm-bf16.parquet").write_bytes(b"x"), "is not the record that the facts name"),
        (lambda s: (s / "about.html").write_text('<a href="gone.html">'), "links to gone.html, which is not there"),
        (lambda s: (s / "about.html").write_text('<a href="index.html#no">'), "an anchor that is not there"),
        (lambda s: (s / "about.html").write_text('<img src="https://x.org/y">'), "asks for https://x.org/y"),
        (lambda s: (s / "about.html").write_text('<a href="../../etc">'), "links to ../../etc, which is not there"),
        (lambda s: (s / "figures/headline.svg").unlink(), "figures/headline.svg is listed and not there"),
        (lambda s: (s / "more.txt").write_text(""), "more.txt is there and not listed"),
    ],
)
def test_a_spoilt_site_says_what_is_wrong(copied, spoil, told):
    spoil(copied)
    assert told in wrong(copied)


def test_no_site_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no site of this study"):
        verify.verify(tmp_path)


def test_a_rehearsal_is_not_published(study, tmp_path):
    config = study.config.model_copy(update={"kind": "rehearsal"})
    with pytest.raises(ConfigError, match="only measurements are published"):
        site.publish(figures.Study(config, study.tables, study.folder, study.figures), tmp_path / "site")


def test_tables_older_than_their_records_are_stale(study, tmp_path):
    folder = shutil.copytree(study.folder, tmp_path / "records")
    (folder / "vllm-bf16.parquet").write_bytes(b"another")
    with pytest.raises(RecordError, match=r"is another file now\. Run `make report`"):
        site.publish(figures.Study(study.config, study.tables, folder, study.figures), tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_an_address_that_is_none_is_refused(study, tmp_path):
    with pytest.raises(ConfigError, match="is no address"):
        site.publish(study, tmp_path / "site", "example.org")


def test_without_a_browser_the_pdf_is_said_to_be_absent(study, tmp_path, monkeypatch):
    monkeypatch.setattr(browser, "find", lambda: None)
    made = site.publish(study, tmp_path / "site", manifest=False)
    assert not (made.folder / "article.pdf").exists()
    assert "Absent: article.pdf. No browser was found" in html.unescape((made.folder / "about.html").read_text())
    held, problems = verify.verify(made.folder)
    assert problems == [] and "not checked in a browser" in held[-1]


def test_corrections_are_listed(study, tmp_path, monkeypatch):
    (tmp_path / "c.csv").write_text('date,where,said,says,why\n2025-01-02,Results,"1,5 ms",15 ms,a <b>comma</b>\n')
    monkeypatch.setattr(site, "CORRECTIONS", tmp_path / "c.csv")
    monkeypatch.setattr(browser, "find", lambda: None)
    about = (site.publish(study, tmp_path / "site", manifest=False).folder / "about.html").read_text()
    assert "2025-01-02" in html.unescape(about) and "1,5 ms" in about and "<b>comma" not in about


def test_the_citation_is_one():
    cited = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "license"} <= set(cited) and cited["license"] == "Apache-2.0"
    assert "Apache License" in (paths.ROOT / "LICENSE").read_text()


def run(name, made, **changes):
    facts = copy.deepcopy(made[0])
    return compare.Run(name, facts, pd.read_csv(made[1] / "tables" / "takings.csv").assign(**changes))


def test_a_run_against_itself_has_not_changed(made, tmp_path):
    found = compare.compare(run("a", made), run("b", made), tmp_path / "c.html")
    assert found and all(c.why for c in found)
    text = (tmp_path / "c.html").read_text()
    assert "Nothing changed from a to b beyond chance and noise" in text
    assert "Neither machine, model, engines nor configurations." in text


def test_what_changed_is_named_with_its_interval(made, tmp_path):
    a = run("a", made)
    b = compare.Run("b", copy.deepcopy(made[0]), a.takings.assign(ttft_p50_s=a.takings["ttft_p50_s"] * 2))
    b.facts["launches"]["vllm-bf16"]["versions"]["engine"] = "vllm <2>"
    found = compare.compare(a, b, tmp_path / "c.html")
    changed = [c for c in found if c.why is None]
    assert {c.metric for c in changed} == {"ttft_p50_s"} and all(c.ratio == pytest.approx(2.0) for c in changed)
    text = (tmp_path / "c.html").read_text()
    assert f"{len(changed)} of {len(found)} comparisons changed from a to b" in text
    assert "vllm-bf16: engine" in html.unescape(text) and "vllm <2>" in html.unescape(text) and "<2>" not in text


def test_runs_are_found_by_name_or_folder_and_refused_by_name(made, tmp_path):
    assert compare.load(str(made[1])).facts["study"]["name"] == "synthetic"
    with pytest.raises(RecordError, match="'nowhere' is no run to compare"):
        compare.load("nowhere")
    other = run("b", made)
    other.facts["study"]["kind"] = "rehearsal"
    with pytest.raises(RecordError, match="kinds"):
        compare.compare(run("a", made), other, tmp_path / "c.html")


def test_studies_of_other_levels_have_nothing_to_compare(made, tmp_path):
    a, b = run("a", made), run("b", made, level="closed-99")
    assert compare.compare(a, b, tmp_path / "c.html") == []
    assert "Nothing could be compared between a and b" in (tmp_path / "c.html").read_text()


def test_the_manifest_names_every_file_and_is_the_same_every_time(published, tmp_path):
    texts = []
    for name in ("a", "b"):
        folder = shutil.copytree(published.folder, tmp_path / name)
        made = site.Made(folder)
        site._manifest(folder, made)
        if made.absent:
            pytest.skip(f"NO MANIFEST: {made.absent[site.MANIFEST]}")
        texts.append((folder / site.MANIFEST).read_text())
    assert texts[0] == texts[1]
    graph = {entity["@id"]: entity for entity in json.loads(texts[0])["@graph"]}
    assert set(site.listed(published.folder)) <= set(graph)
    assert graph["index.html"]["sha256"] == records.sha256(published.folder / "index.html")
    root = graph["./"]
    assert root["mainEntity"] == {"@id": "index.html"} and root["datePublished"] == "2025-01-01T00:10:00Z"
    assert root["license"] and len(root["hasPart"]) >= len(site.listed(published.folder))
