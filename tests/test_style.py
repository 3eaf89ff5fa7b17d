"""One look for one thing, and the same bytes from the same data."""

import re

import matplotlib.pyplot as plt
import pytest

from lib.errors import ConfigError
from lib.show import draw, style


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def picture(title="A finding"):
    figure, ax = style.grid(height=2)
    ax.plot([1, 2, 4], [10, 20, 40], **style.look("vllm-cpu", "bf16"))
    draw.legend(figure, [("vllm-cpu", "bf16")])
    style.finding(ax, title, "In words.")
    return ax


def test_the_same_data_give_the_same_bytes_and_no_date(tmp_path):
    one = style.save(picture(), tmp_path / "a", "f", kind="measured")
    two = style.save(picture(), tmp_path / "b", "f", kind="measured")
    assert one.read_bytes() == two.read_bytes()
    assert one.with_suffix(".png").read_bytes() == two.with_suffix(".png").read_bytes()
    assert "<dc:date>" not in one.read_text() and not re.search(r"20\d\d-\d\d-\d\d", one.read_text())


def test_title_and_words_travel_with_the_picture(tmp_path):
    text = style.save(picture("A beats B"), tmp_path, "f", kind="measured").read_text()
    assert "<dc:title>A beats B</dc:title>" in text and "<dc:description>A beats B. In words.</dc:description>" in text
    assert f'id="{style.FINDING}"' in text


def test_a_rehearsal_is_stamped_and_a_measurement_is_not(tmp_path):
    assert "REHEARSAL" in style.save(picture(), tmp_path, "r", kind="rehearsal").read_text()
    assert "REHEARSAL" not in style.save(picture(), tmp_path, "m", kind="measured").read_text()


def test_nothing_is_left_beside_the_picture(tmp_path):
    style.save(picture(), tmp_path, "f", kind="measured")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.png", "f.svg"]


def test_colour_is_the_engine_and_marker_the_width():
    assert style.look("vllm-cpu", "bf16")["color"] == style.look("vllm", "int8")["color"]
    assert style.look("vllm-cpu", "bf16")["color"] != style.look("llama-cpp", "bf16")["color"]
    assert style.marker("int4-w4a16") == style.marker("q4_0") != style.marker("bf16")
    assert style.marker("fp8") != style.marker("int8")


def test_kinds_never_look_the_same():
    looks = [(str(kind.linestyle), kind.mark) for kind in style.KINDS.values()]
    assert len({line for line, _ in looks}) == len(looks) == len({mark for _, mark in looks})
    assert [name for name, kind in style.KINDS.items() if kind.filled] == ["measured"]


@pytest.mark.parametrize(
    "refused",
    [
        lambda: style.engine("mystery"),
        lambda: style.marker("int3"),
        lambda: style.kind("guessed"),
        lambda: style.metric_label("speed_p95_s"),
    ],
)
def test_what_has_no_look_is_refused_with_what_there_is(refused):
    with pytest.raises(ConfigError, match=r"are|metrics"):
        refused()


def test_every_contender_of_every_profile_has_a_look():
    from lib import config

    for profile in config.profiles():
        for name in config.launch_names(profile):
            launch = config.load_launch(profile, name)
            assert style.look(launch.engine, launch.precision)["marker"]


def test_labels_come_from_the_metric():
    assert style.metric_label("ttft_p95_s") == "Time to first token, p95 (ms)"
    assert style.metric_label("tpot_p50_s") == "Time per output token, median (ms)"
    assert style.metric_scale("e2e_p50_s") == 1.0


def test_end_labels_keep_apart():
    _, ax = style.grid(height=2)
    ax.set_ylim(0, 100)
    draw.end_labels(ax, [(1, 50, "a", "red"), (1, 50, "b", "blue"), (1, 50, "b", "blue")], gap_points=10)
    offsets = sorted(text.xyann[1] for text in ax.texts)
    assert len(offsets) == 2 and offsets[1] - offsets[0] >= 10 - 1e-9


def test_a_narrow_axis_stays_linear_and_a_wide_one_does_not():
    _, (narrow, wide) = style.grid(1, 2)
    narrow.plot([10, 20])
    wide.plot([10, 200])
    draw.log_axis(narrow, "y")
    draw.log_axis(wide, "y")
    assert (narrow.get_yscale(), wide.get_yscale()) == ("linear", "log")


def test_wrapped_keeps_every_word():
    text = "one two three four five six seven eight nine ten"
    assert style.wrapped(text, 2).split() == text.split() and max(map(len, style.wrapped(text, 2).split("\n"))) <= 18
