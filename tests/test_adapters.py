"""Adapters are asked for by name, proven before they are measured, and an engine that mixes them up is found out."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tokenizers import Tokenizer

from lib import config, loads, paths
from lib.config import Launch, Level
from lib.engines import build, inside, registry
from lib.errors import ConfigError, MeasureError
from lib.measure import adapters, takings
from tests import mini_study

NAMES = ("adapter-1", "adapter-2", "adapter-3")


def launch(engine="vllm-cpu", **settings) -> Launch:
    of = {"vllm-cpu": ("fp32", "smollm2-135m-bf16"), "llama-cpp": ("f16", "smollm2-135m-gguf-f16")}[engine]
    return Launch(name="x", engine=engine, precision=of[0], artifact=of[1], environment=engine, start_seconds=9,
                  settings=settings)


def level(**more) -> Level:
    return Level(**{"kind": "closed", "workload": "news", "concurrency": 4, "seconds": 2.0} | more)


def test_a_levels_id_and_family_say_that_it_asks_adapters():
    assert level(adapters=8, popularity="zipf").id == "closed-4-lora-8-zipf"
    assert level(adapters=8).family == "closed-lora" and level().family == "closed"
    assert level(adapters=8).family in loads.SATURATED


@pytest.mark.parametrize("more, says", [
    ({"popularity": "zipf"}, "adapters: 2"), ({"popularity": "zipf", "adapters": 1}, "adapters: 2"),
    ({"adapters": 2, "think_seconds": 1.0}, "do not pause"),
    ({"adapters": 2, "kind": "poisson", "rate_rps": 1.0, "concurrency": None}, "takes no `adapters`"),
])
def test_levels_that_make_no_sense_are_refused(more, says):
    with pytest.raises(ValueError, match=says):
        level(**more)


def test_requests_are_spread_evenly_or_by_zipf_and_the_same_for_every_contender():
    even, skewed = (takings.adapters(level(adapters=4, popularity=p), 4000, 1) for p in (None, "zipf"))
    share = {name: even.count(name) / 4000 for name in set(even)}
    assert sorted(share) == [f"adapter-{i}" for i in range(1, 5)] and all(abs(s - 0.25) < 0.03 for s in share.values())
    # Weights 1, 1/2, 1/3, 1/4: the first gets 12/25 of all requests.
    assert abs(skewed.count("adapter-1") / 4000 - 12 / 25) < 0.03
    assert skewed == takings.adapters(level(adapters=4, popularity="zipf"), 4000, 1)
    assert takings.adapters(level(), 2, 1) == [None, None]


def test_a_config_without_adapters_keeps_its_hash():
    study = config.load_study("cpu")
    said = study.model_dump(mode="json", exclude_none=True)
    assert not any({"adapters", "popularity"} & set(one) for one in said["levels"])


def test_each_engine_asks_for_an_adapter_in_its_own_words():
    asked = {"prompt": "x", "model": "x"}
    vllm, llama = (registry.engine(name) for name in ("vllm-cpu", "llama-cpp"))
    given = {"adapters": "smollm2-135m-lora-r8"}
    assert vllm.adapted(launch(**given), asked, "adapter-3")["model"] == "adapter-3"
    assert llama.adapted(launch("llama-cpp", **given), asked, "adapter-3")["lora"] == [{"id": 2, "scale": 1.0}]
    for engine, name in ((vllm, "vllm-cpu"), (llama, "llama-cpp")):
        assert engine.adapters(launch(name)) == () and len(engine.adapters(launch(name, **given))) == inside.COUNT
        with pytest.raises(ConfigError, match="serves no LoRA adapter"):
            engine.adapted(launch(name), asked, "adapter-1")


def test_vllm_is_told_to_serve_adapters_and_nothing_changes_without_them():
    vllm = registry.engine("vllm-cpu")
    with_them = vllm.command(launch(adapters="smollm2-135m-lora-r8", max_loras=4), 1)
    assert with_them[with_them.index("--max-loras") + 1] == "4" and "--enable-lora" in with_them
    assert not any("lora" in word for word in vllm.command(launch(), 1))
    # What is taken out and loaded again stays in memory under its old number, and must push no other out.
    assert with_them[with_them.index("--max-cpu-loras") + 1] == str(inside.COUNT + 1 + inside.SWAPS)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in vllm.variables(launch(), "k")


@pytest.mark.parametrize("given, says", [
    ({"adapters": "smollm2-135m-lora-r16", "max_lora_rank": 8}, "rank 16 and max_lora_rank is 8"),
    ({"adapters": "smollm2-135m-bf16"}, "no adapters"),
    ({"adapters": "nothing"}, "no recipe"),
])
def test_adapters_that_cannot_be_served_are_refused_before_anything_is_made(given, says):
    with pytest.raises(ConfigError, match=says):
        registry.engine("vllm-cpu").check(launch(**given))


def test_what_a_launch_serves_is_built_and_hashed():
    one = launch(adapters="smollm2-135m-lora-r8")
    assert build.of(one) == ["smollm2-135m-bf16", "smollm2-135m-lora-r8"]
    assert build.of(launch()) == ["smollm2-135m-bf16"]
    assert "smollm2-135m-lora-r16" in build.needed("lora")


class Told:
    """A server that answers as `whose(adapter, place)` says: the hash of an answer is of whose it is."""

    def __init__(self, whose=lambda adapter, place: adapter, takes=lambda name: not name.startswith(("rank", "other"))):
        self.asked, self.whose, self.takes = [], whose, takes
        self.model, self.added_tokens, self.wire = "told", 0, "none"
        self.launch = launch(adapters="smollm2-135m-lora-r8")
        self.engine = SimpleNamespace(loads_adapters=True, offer=self.offer)

    def offer(self, server, name, folder):
        return self.takes(name), "so it is"

    def check_alive(self):
        pass

    def body(self, prompt, tokens, adapter=None):
        self.asked.append(prompt)
        return "/", {"adapter": adapter}

    def answers(self, server, requests, journal, at_once, study):
        rows = []
        for place, request in enumerate(requests):
            adapter = yaml.safe_load(request.body)["adapter"]
            of = self.whose(adapter, (place, at_once))
            status = "failed" if of == "nobody" else "complete"
            digest = hashlib.sha256(str(of).encode()).hexdigest()[:16]
            rows.append({"status": status, "cause": "HTTP 404", "text_hash": digest, "sent_ns": 10**9,
                         "event_ns": [10**9 + 5_000_000]})
        return rows


def absent(adapter, place):
    return "nobody" if adapter == adapters.ABSENT else adapter


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CONFIG", tmp_path / "config")
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    mini_study.prepare(tmp_path)
    study = config.load_study("mini")
    tokenizer = Tokenizer.from_file(str(tmp_path / "artifacts" / mini_study.ARTIFACT / "tokenizer.json"))

    def run(server, number=0):
        monkeypatch.setattr(adapters, "_answers", server.answers)
        monkeypatch.setattr(adapters.churn, "take", lambda *told: {"reason": "see test_churn.py", "asked": told[1:4]})
        return adapters.check(study, server, tokenizer, number, Path(tmp_path), NAMES)

    return run


def test_a_server_that_answers_as_asked_is_timed(check):
    found = check(Told(absent))
    assert found["rank"] == 8 and len(found["load_s"]) == 3
    assert found["first_s"] == pytest.approx([0.005] * 3) and len(found["again_s"]) == 3
    assert len(found["switch_s"]) == 3 and set(found["answers"]) == {"", *NAMES}
    assert found["mixed"] == {"requests": 4, "equal": 4, "other": 0}
    assert [row["taken"] for row in found["refused"]] == [False, False, False]


def test_only_the_first_start_offers_what_must_be_refused_and_swaps_under_load(check):
    later, first = check(Told(absent), 1), check(Told(absent))
    assert later["refused"] == [] and later["churn"] is None
    question, tokens, known = first["churn"]["asked"]
    assert question and tokens == adapters.TOKENS and list(known) == [None, *NAMES]


def test_a_silently_ignored_adapter_is_found(check):
    with pytest.raises(MeasureError, match="ignores the adapter"):
        check(Told(lambda adapter, place: None if adapter == "adapter-2" else adapter))


def test_two_adapters_that_answer_alike_are_found(check):
    with pytest.raises(MeasureError, match="adapter-1, adapter-2"):
        check(Told(lambda adapter, place: "adapter-1" if adapter == "adapter-2" else adapter))


def test_answers_that_are_equal_by_chance_are_asked_once_more(check):
    def alike_at_first(adapter, place):
        first = server.asked[-1] == server.asked[0]
        return None if first and adapter == "adapter-2" else absent(adapter, place)

    server = Told(alike_at_first)
    assert len(set(check(server)["answers"].values())) == 4
    assert len(set(server.asked)) == 2  # as many questions as were needed


def test_an_answer_of_another_adapter_among_many_at_once_is_found(check):
    def swapped(adapter, place):
        return "adapter-1" if adapter == "adapter-3" and place[1] > 1 else adapter

    with pytest.raises(MeasureError, match="asked for adapter-3 and answered as adapter-1"):
        check(Told(swapped))


def test_an_adapters_answer_for_the_model_itself_is_named(check):
    def last(adapter, place):
        return "adapter-3" if adapter is None and place[1] > 1 else absent(adapter, place)

    found = check(Told(last))
    assert found["instead"] == ["adapter-3"] and found["mixed"] == {"requests": 4, "equal": 3, "other": 0}


def test_an_answer_that_batching_turned_is_counted_and_nobodys(check):
    def turned(adapter, place):
        return "turned" if place == (0, 4) else absent(adapter, place)

    found = check(Told(turned))
    assert found["mixed"] == {"requests": 4, "equal": 3, "other": 1} and found["turned"] == [""]


def test_an_answer_in_turn_that_is_nobodys_is_refused(check):
    def turned(adapter, place):
        # Asked so far: the model twice, each of three adapters twice, three in turn.
        return "turned" if adapter == "adapter-2" and len(server.asked) == 11 else absent(adapter, place)

    server = Told(turned)
    with pytest.raises(MeasureError, match="asked for adapter-2 in turn with the others, and answered as nobody does"):
        check(server)


@pytest.mark.parametrize("strange, refused", [(2, False), (3, True), (4, True)])
def test_more_answers_at_once_that_are_nobodys_than_half_are_refused(check, strange, refused):
    server = Told(lambda adapter, place: f"turned {place}" if place[1] == 4 and place[0] < strange
                  else absent(adapter, place))
    if refused:
        with pytest.raises(MeasureError, match=f"{strange} of 4 requests at once as nobody does alone"):
            check(server)
    else:
        assert check(server)["mixed"] == {"requests": 4, "equal": 2, "other": 2}


def test_what_an_engine_takes_that_it_should_not_is_kept(check):
    told = Told(lambda adapter, place: None if adapter == adapters.ABSENT else adapter,
                takes=lambda name: not name.startswith("rank"))
    refused = check(told)["refused"]
    assert [row["taken"] for row in refused] == [True, False, True]
    assert refused[0]["said"] == "answered as the model itself"
    assert refused[2]["said"] == "so it is; asked for, it answered as nobody else does"


def test_an_adapter_that_is_not_taken_ends_the_launch(check):
    with pytest.raises(MeasureError, match="did not take adapter-2: so it is"):
        check(Told(absent, takes=lambda name: name != "adapter-2"))


def test_the_record_keeps_one_list_of_switches_per_start():
    meta = {}
    for seconds in ([0.1], [0.2, 0.3]):
        adapters.note(meta, {"switch_s": seconds})
    assert meta["lora"]["switch_s"] == [[0.1], [0.2, 0.3]] and len(meta["lora"]["runs"]) == 2
