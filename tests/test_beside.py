"""Studies taken beside another: at which depth, under which rules, and how their numbers join its article."""

import json

import matplotlib.pyplot as plt
import pytest
import synthetic
import yaml

from lib import config, paths
from lib.analyse import inside, tables
from lib.engines import check
from lib.errors import ConfigError
from lib.publish import site
from lib.show import article, figures

ANALYST = {
    "news": {"input_tokens": {"mean": 128}, "output_tokens": {"mean": 32}, "reads_like": "x"},
    "analyst": {"input_tokens": {"mean": 120}, "question_tokens": {"mean": 60}, "output_tokens": {"mean": 32},
                "turns": 3, "prefix_cache": "wanted", "reads_like": "x"},
}  # fmt: skip
CACHE = {"tokens": 100_000, "context": 400, "bytes": 2_304_000_000, "value_bytes": 2.0, "source": "log"}


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Two copies of the smoke profile, `one` with `two` beside it, that a test may spoil."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for path in (paths.CONFIG / "smoke").glob("*.yaml"):
            renamed = path.name if name == "one" or path.stem == "study" else f"two-{path.name}"
            (tmp_path / name / renamed).write_text(path.read_text())
    monkeypatch.setattr(paths, "CONFIG", tmp_path)
    change(tmp_path / "one" / "study.yaml", beside=["two"])
    return tmp_path


def change(path, **sections):
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | sections))


def test_a_study_knows_those_beside_it_and_a_cut_down_one_has_none(profiles):
    assert [other.profile for other in config.beside(config.load_study("one"))] == ["two"]
    assert config.beside(config.load_study("one", "rehearsal")) == []
    assert config.beside(config.load_study("two")) == []


def test_what_is_told_beside_decides_no_number(profiles):
    name = config.launch_names("one")[0]
    before = config.config_hash(config.load_study("one"), config.load_launch("one", name))
    change(profiles / "one" / "study.yaml", beside=[])
    change(profiles / "one" / f"{name}.yaml", depth="full")
    assert config.config_hash(config.load_study("one"), config.load_launch("one", name)) == before


def test_a_launch_of_full_depth_is_left_out_of_the_light_version_alone(profiles):
    names = config.launch_names("one")
    change(profiles / "one" / "study.yaml", depth={"full": {}})
    change(profiles / "one" / f"{names[0]}.yaml", depth="full")
    taken = {depth: config.launch_names("one", depth) for depth in ("default", "canary", "full", "rehearsal")}
    assert taken == {"default": names[1:], "canary": names[1:], "full": names, "rehearsal": names}
    assert config.launch_names("one") == names and config.run_order(config.load_study("one")) == names[1:]


@pytest.mark.parametrize(
    ("file", "sections", "says"),
    [
        ("one", {"beside": ["twoo"]}, r"no profile 'twoo'.*did you mean 'two'"),
        ("two", {"beside": ["one"]}, "beside names two, which has profiles beside it too"),
        ("two", {"seed": "many"}, "two/study.yaml: .*seed"),
    ],
)
def test_mistakes_are_told_at_the_door(profiles, file, sections, says):
    change(profiles / file / "study.yaml", **sections)
    with pytest.raises(ConfigError, match=says):
        check.check("one", "default")


def test_two_launches_of_one_article_have_two_names(profiles):
    name = config.launch_names("one")[0]
    (profiles / "two" / f"{name}.yaml").write_text((profiles / "one" / f"{name}.yaml").read_text())
    with pytest.raises(ConfigError, match=f"both have a launch {name}"):
        check.check("one", "default")


def scored(folder, launch, kl, **artifact):
    """Write a quality record in which each of three words costs `kl` nats."""
    text = {"logp": [-2.0] * 3, "logp_reference": [-2.0] * 3, "kl": [kl] * 3, "agree": [1] * 3}
    said = {
        "schema": 1, "kind": "measured", "study": folder.name, "launch": launch, "engine": "llama-cpp",
        "precision": "q8_0", "status": "measured", "reason": None, "chance": 0.25, "estimator": "known",
        "artifact": {"artifact": "a", "key": "k", "format": "gguf-q8_0", "bytes": 1, "dtype": None} | artifact,
        "reference": {"artifact": "b"}, "itself": False, "texts": [text] * 8, "items": [], "when_utc": "2026-12-01",
    }  # fmt: skip
    (folder / f"{launch}.quality.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A study with one beside it that has sessions, a full cache and a launch that failed."""
    root = tmp_path_factory.mktemp("told")
    own = synthetic.study(levels=(1, 4), seconds=4.0, repeats=2)
    sessions = {"kind": "sessions", "concurrency": 2, "think_seconds": 0.1, "workload": "analyst"}
    other = synthetic.study(levels=(), seconds=5.0, repeats=2, more=(sessions,), workloads=ANALYST, profile="talks")
    synthetic.write_study(root / "synthetic", own, (synthetic.Server(extra={"kv_cache": CACHE}),))
    on = synthetic.Server(name="talks-bf16", stamp_source="user", extra={"kv_cache": CACHE})
    synthetic.write_study(root / "talks", other, (on,), absent={"talks-fp8": "this computer cannot run it"})
    scored(root / "talks", "talks-whole", 0.25)
    scored(root / "talks", "talks-kv", 0.375, kv="q8_0")
    facts = tables.build(own, root / "synthetic", root / "tables", others=[(other, root / "talks")])
    return facts, root, own


def test_its_rows_join_with_their_own_sources(told):
    (row,) = told[0]["inside"]["sessions"]
    assert row["launch"] == "talks-bf16" and row["source"].startswith("records/talks/talks-bf16.parquet#")
    assert row["by_turn"][0]["value"] == pytest.approx(50 * 1.1, rel=0.05)
    assert "talks-bf16" not in told[0]["launches"]  # no contender of the study itself
    assert [one["name"] for one in told[0]["beside"]] == ["talks"]


def test_what_a_cache_costs_joins_and_no_more_of_its_quality(told):
    (row,) = told[0]["quality"]["caches"]
    assert (row["launch"], row["kv_beside"], row["cache_kl"]["value"]) == ("talks-kv", "talks-whole", 0.125)
    assert told[0]["quality"]["launches"] == {}


def test_what_it_misses_is_missing_in_the_article(told):
    (gone,) = told[0]["missing"]
    assert gone["launch"] == "talks: talks-fp8" and gone["reason"] == "this computer cannot run it"


def test_caches_that_are_alike_are_told_once(told):
    assert [row["launch"] for row in told[0]["inside"]["kv_cache"]] == ["vllm-bf16"]
    one = {key: [] for key in ("lora", "sessions")} | {"kv_cache": told[0]["inside"]["kv_cache"], "filled": 0.8}
    larger = {**one["kv_cache"][0], "tokens": one["kv_cache"][0]["tokens"] | {"value": 1.0}}
    assert len(inside.joined([one, one | {"kv_cache": [larger]}])["kv_cache"]) == 2


def test_the_page_shows_rows_warnings_and_how_light_it_is(told):
    facts, root, own = told
    study = figures.Study(own, root / "tables", root / "synthetic", root / "figures")
    for name in figures.FIGURES:
        figures.draw(study, name)
        plt.close("all")
    light = {"profile": "talks", "parts": ["sessions"], "launches": [1, 3], "takings": [2, 12]}
    facts = facts | {"inside": facts["inside"] | {"light": [light]}}
    text = article.render(facts, root / "figures", root / "tables", root / "page.html").read_text()
    assert "1 of 3 launches of profile <em>talks</em>, with 2 instead of 12 takings" in text
    row = text[text.index('aria-label="Sessions"') :].partition("</table>")[0]
    cache = text[text.index('aria-label="What a quantized KV cache costs"') :].partition("</table>")[0]
    assert "q8_0, kv q8_0" in cache.replace("&#95;", "_") and "0.125" in cache
    assert "talks&#45;bf16" in row and 'class="warn"' in row  # its user-space stamps are doubted where it stands


def test_its_records_are_published_in_a_folder_of_its_own(told):
    facts, root, _ = told
    found = dict(site.sources(facts, root / "synthetic", root))
    assert set(found) == {root / "synthetic" / "vllm-bf16.parquet", root / "talks" / "talks-bf16.parquet"}
    assert all(path.exists() for path in found)


def test_the_default_profile_takes_a_light_version_and_all_of_it_at_full_depth():
    light, full = (config.beside(config.load_study("cpu", depth)) for depth in ("default", "full"))
    assert [s.profile for s in light] == [s.profile for s in full] == ["lora", "sessions", "inside"]
    for less, whole in zip(light, full, strict=True):
        names = [config.launch_names(s.profile, s.depth) for s in (less, whole)]
        assert set(names[0]) < set(names[1]) and any("vllm" in name for name in names[1])
