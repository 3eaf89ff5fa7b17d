"""One GPU of any kind: what fits it, random weights that say so wherever a number of theirs stands, and its bounds."""

import copy
import json
import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
import synthetic
from tokenizers import Tokenizer

from lib import config, paths
from lib.analyse import bounds, tables
from lib.engines import build, cards, check, flags, gpu, registry, scoring
from lib.engines.recipes import fetch_model, shape_llama_3_70b
from lib.errors import NoValue
from lib.measure import canary
from lib.show import article, figures

ONES = {f"{p}/{name}": config.load_launch(p, name) for p in ("one-gpu", "one-gpu-70b") for name in
        config.launch_names(p)}  # fmt: skip
FP8, INT4 = ONES["one-gpu-70b/vllm-fp8-random"], ONES["one-gpu-70b/vllm-int4-random"]
SMALL = ONES["one-gpu/vllm-int4-w4a16"]
SAID = "random weights: speed only"


def sees(monkeypatch, *told):
    """Let the driver tell of GPUs: name, GiB, compute capability."""
    rows = [{"name": name, "memory_mib": str(gib * 1024), "compute": compute} for name, gib, compute in told]
    monkeypatch.setattr(gpu, "found", lambda: rows)


@pytest.mark.parametrize("launch", ONES.values(), ids=ONES.keys())
def test_every_launch_is_sound_and_takes_one_gpu(launch):
    engine = registry.of(launch)
    engine.check(launch)
    assert engine.gpus(launch) == 1 and "127.0.0.1" in engine.command(launch, 1)
    ((_, names),) = engine.calls(launch)
    assert set(names) <= flags.known("vllm-0.24.0", "vllm serve")


@pytest.mark.parametrize(
    ("card", "fits"),
    [
        (("NVIDIA GeForce RTX 2080", 8, "7.5"), {"one-gpu"}),
        (("NVIDIA A100-SXM4-80GB", 80, "8.0"), {"one-gpu", "int4"}),
        (("NVIDIA H100 NVL", 94, "9.0"), {"one-gpu", "int4", "fp8"}),
        (("NVIDIA H200", 140, "[N/A]"), {"one-gpu", "int4", "fp8"}),  # a driver that does not tell it
        (("NVIDIA GeForce GTX 1080", 8, "6.1"), set()),
    ],
)
def test_what_fits_is_picked_by_memory_and_capability(card, fits, monkeypatch):
    sees(monkeypatch, card)
    found = {n.partition("/")[0] if n.startswith("one-gpu/") else one.precision.partition("-")[0]
             for n, one in ONES.items() if registry.of(one).absent(one) is None}  # fmt: skip
    assert found == fits


def test_what_does_not_fit_is_told_with_what_it_has_and_what_would(monkeypatch):
    sees(monkeypatch, ("NVIDIA A10", 22, "8.6"))
    why = registry.of(FP8).absent(FP8)
    assert why == "vLLM 0.24.0 at fp8-random-weights does not fit: NVIDIA A10 has 22 GiB of the 90 GiB needed."
    assert check.what_fits("one-gpu-70b").startswith("What fits this computer's GPU: one-gpu (vllm-fp16, ")
    assert check.what_fits("h100") is None
    sees(monkeypatch, ("NVIDIA A100-SXM4-80GB", 80, "8.0"))
    assert "one-gpu-70b (vllm-int4-random)" in check.what_fits("one-gpu")
    assert canary.first(config.load_study("one-gpu-70b")).name == INT4.name  # the first that can run
    sees(monkeypatch)
    assert "no NVIDIA GPU" in registry.of(SMALL).absent(SMALL) and check.what_fits("one-gpu") is None
    assert cards.lacks(FP8.card, {"name": "L40", "memory_mib": "999999", "compute": "8.6"}) == (
        "L40 has compute capability 8.6, and 8.9 is needed"
    )


def test_no_other_launch_changes_by_it():
    old = config.load_launch("h100", "vllm-0.6.2-fp16")
    assert old.card is None and "card" not in old.model_dump(exclude_none=True)
    argv = registry.of(old).command(old, 1)
    assert "--load-format" not in argv and "--quantization" not in argv
    argv = registry.of(SMALL).command(SMALL, 1)
    assert "--load-format" not in argv and "--quantization" not in argv


def test_random_weights_are_asked_for_by_artifact():
    for one, kind in ((FP8, "fp8"), (INT4, "auto_awq")):
        argv = registry.of(one).command(one, 1)
        assert argv[argv.index("--load-format") + 1] == "dummy"
        assert argv[argv.index("--quantization") + 1] == kind
        assert build.qualifier(one.artifact) == SAID
    assert build.qualifier(SMALL.artifact) is None


# -- shapes without weights ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """What the recipe makes of a tiny tokenizer."""
    folder = tmp_path_factory.mktemp("shapes")
    for name in ("source", "out"):
        (folder / name).mkdir()
    letters = {letter: number for number, letter in enumerate("Ġabcdefghijklmnopqrstuvwxyz")}
    model = {"type": "BPE", "vocab": letters | {"ab": len(letters)}, "merges": [["a", "b"]]}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    told = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}  # fmt: skip
    (folder / "source" / "tokenizer.json").write_text(json.dumps(told))
    (folder / "source" / "tokenizer_config.json").write_text("{}")
    script = paths.ROOT / "lib" / "engines" / "recipes" / build.recipe(FP8.artifact).script
    command = [sys.executable, str(script), "--out", str(folder / "out"), "--scheme", "fp8"]
    subprocess.run([*command, "--source", str(folder / "source")], check=True, capture_output=True)
    return folder


def test_the_shapes_are_llama_3_70bs_and_nothing_weighs_anything(shapes):
    said = json.loads((shapes / "out" / "config.json").read_text())
    assert {key: said[key] for key in fetch_model.SHAPES} == fetch_model.SHAPES
    assert said["quantization_config"]["quant_method"] == "fp8"
    assert sorted(p.name for p in (shapes / "out").iterdir()) == ["config.json", "tokenizer.json",
                                                                  "tokenizer_config.json"]  # fmt: skip
    study = config.load_study("one-gpu-70b").model
    assert (study.layers, study.hidden, study.vocab) == (80, 8192, shape_llama_3_70b.VOCABULARY)


def test_text_is_cut_as_before_and_every_token_can_be_seen(shapes):
    before, after = (Tokenizer.from_file(str(shapes / name / "tokenizer.json")) for name in ("source", "out"))
    assert after.get_vocab_size() == 128256
    assert after.encode("cab word").ids == before.encode("cab word").ids
    assert after.decode([128255]).strip() == "word128255" and after.decode([100]).strip() == "word100"


# -- the mark --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def speed_only(tmp_path_factory):
    """A small study whose records are of random weights."""
    folder = tmp_path_factory.mktemp("random")
    of = synthetic.study(levels=(1, 4), seconds=6.0, repeats=2)
    precision = FP8.precision
    of = synthetic.write_study(folder / "records", of, tuple(
        synthetic.Server(name=name, engine="vllm", precision=precision, seed=i, extra={"qualifier": SAID})
        for i, name in enumerate(("vllm-fp8-random", "vllm-fp8-random-2"))
    ))  # fmt: skip
    scored = {"vllm-fp8-random": {"status": "measured"}}  # by whatever accident
    facts = tables.build(of, folder / "records", folder / "tables", scored=scored,
                         about_h100={"value": None, "reason": "a test"})  # fmt: skip
    return of, folder, facts


def test_every_row_of_every_table_says_random_weights(speed_only):
    _, folder, facts = speed_only
    for path in (folder / "tables").glob("*.csv"):
        if path.stem in ("quality", "tradeoff"):
            continue
        head, *rows = path.read_text().splitlines()
        assert rows and head.endswith(",qualifier") and all(row.endswith(f",{SAID}") for row in rows), path.name
    assert facts["study"]["qualifier"] == SAID
    launch = facts["launches"]["vllm-fp8-random"]
    assert launch["qualifier"] == SAID and launch["artifact"]["size"]["value"] is None


def test_no_table_of_quality_holds_them(speed_only):
    _, folder, facts = speed_only
    assert facts["quality"]["launches"] == {} and facts["tradeoff"] == []
    for name in ("quality", "tradeoff"):
        assert len((folder / "tables" / f"{name}.csv").read_text().splitlines()) == 1
    with pytest.raises(NoValue, match=SAID):
        scoring.of(FP8)


def test_every_figure_of_its_records_says_so_and_no_other(speed_only):
    of, folder, _ = speed_only
    study = figures.Study(of, folder / "tables", folder / "records", folder / "figures")
    for name in ("headline", "frontier", "arithmetic"):
        figures.draw(study, name)
        plt.close("all")
        said = (folder / "figures" / f"{name}.svg").read_text()
        assert (f">{SAID}<" in said) == (name != "arithmetic"), name
    assert "vLLM fp8-random-weights" in (folder / "figures" / "headline.svg").read_text()


def test_the_page_says_so_before_anything_and_over_every_table(made, tmp_path):
    facts, folder = copy.deepcopy(made[0]), made[1]
    facts["study"]["qualifier"] = SAID
    changed = "vllm-bf16"
    facts["launches"][changed] |= {"qualifier": SAID, "precision": FP8.precision}
    for row in facts["headline"]:
        row |= {"precision": FP8.precision} if row["launch"] == changed else {}
    page = article.render(facts, folder / "figures", folder / "tables", tmp_path / "page.html").read_text()
    assert page.index("Random weights: speed only.") < page.index('<figure id="figure-headline"')
    assert "Real engines served a real model" not in page
    for label in ("Results", "Contenders", "Records"):
        table = page[page.index(f'aria-label="{label}"') :]
        assert f"<caption><b>{SAID}</b>" in table[: table.index("<thead>")], label
    promised = page[page.index("The published table") :] if "The published table" in page else ""
    assert f"<caption><b>{SAID}</b>" not in promised[: promised.find("</table>")]
    before = (made[1] / "page.html").read_text() if (made[1] / "page.html").exists() else ""
    assert SAID not in before


# -- bounds ----------------------------------------------------------------------------------------
def bounded(tmp_path, profile, names, precision):
    """Ceiling of a launch whose record names these GPUs."""
    of = synthetic.study(levels=(1,), seconds=2.0, repeats=1)
    machine = {"cpu": "x", "cores": 2, "memory_bytes": 1, "gpus": [{"name": name} for name in names]}
    server = synthetic.Server(precision=precision, extra={"machine": machine})
    synthetic.write_study(tmp_path, of, (server,))
    (one,), _ = tables.collect(of, tmp_path)
    study = config.load_study(profile)
    return bounds.ceiling(one, study, bounds.Host(None, {}, "x"))


def test_the_bound_is_of_the_gpu_found(tmp_path):
    # FP8 weights and a 16-bit head, 70.6 GB, once a step: over 4.8 TB/s, and over eight times 3.35 TB/s.
    one = bounded(tmp_path / "a", "one-gpu-70b", ["NVIDIA H200"], FP8.precision)
    assert one.bound.decode_step_s(1, 1) == pytest.approx(70.55e9 / 4.8e12, rel=0.01)
    eight = bounded(tmp_path / "b", "h100", ["NVIDIA H100 80GB HBM3"] * 8, "fp8")
    assert eight.bound.decode_step_s(1, 1) == pytest.approx(2.63e-3, rel=0.01)


@pytest.mark.parametrize(
    ("profile", "names", "precision", "why"),
    [
        ("one-gpu-70b", ["NVIDIA A10"], "fp8", "no specification of NVIDIA A10"),
        ("one-gpu-70b", ["NVIDIA H100 80GB HBM3"], "bf16", "weights do not fit"),
        ("h100", ["NVIDIA H100 80GB HBM3"] * 4, "fp8", "names 4 GPUs"),
        ("one-gpu-70b", ["NVIDIA A100-SXM4-80GB"], "fp8", "no fp8 rate"),
    ],
)
def test_where_no_bound_is_known_it_is_said_why(profile, names, precision, why, tmp_path):
    found = bounded(tmp_path, profile, names, precision)
    assert found.bound is None and why in found.reason
