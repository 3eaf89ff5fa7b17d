import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lib.errors import MeasureError, RecordError
from lib.measure import journal as jn
from lib.measure.clock import ClockMap, choose

S = 1_000_000_000


def entries(path):
    reader = jn.Reader(path)
    return [(kind, index, reader.user_ns(at), reader.kernel_ns(at), bytes(reader.payload(at)))
            for kind, index, at in reader.scan()]


def test_what_was_appended_is_read(tmp_path):
    path = tmp_path / "j"
    writer = jn.Writer(path, 1 << 20, {"requests": 3})
    stamp = (12).to_bytes(8, sys.byteorder) + (34).to_bytes(8, sys.byteorder)
    writer.append(jn.DATA, 7, 111, b"hello", stamp)
    writer.append(jn.END, 7, 222)
    writer.append(jn.DONE, jn.NO_REQUEST, 333, b"x" * 8)
    assert jn.Reader(path).note == {"requests": 3}
    before = entries(path)
    writer.close()
    assert entries(path) == before == [
        (jn.DATA, 7, 111, 12 * S + 34, b"hello"), (jn.END, 7, 222, 0, b""), (jn.DONE, jn.NO_REQUEST, 333, 0, b"x" * 8),
    ]
    assert path.stat().st_size < 2 * jn.PAGE


def test_an_entry_without_its_last_word_does_not_exist(tmp_path):
    path = tmp_path / "j"
    writer = jn.Writer(path, 1 << 20)
    writer.append(jn.DATA, 1, 1, b"whole")
    at = writer.position
    writer.view[at + jn.HEAD : at + jn.HEAD + 4] = b"half"
    writer.words[(at >> 3) + 1] = 99
    assert [entry[4] for entry in entries(path)] == [b"whole"]


def test_sigkill_at_any_moment_leaves_only_whole_entries(tmp_path):
    path = tmp_path / "j"
    code = (
        "import sys; from pathlib import Path; from lib.measure import journal as jn\n"
        "w = jn.Writer(Path(sys.argv[1]), 1 << 28)\n"
        "print('go', flush=True); i = 0\n"
        "while True:\n"
        "    w.append(jn.DATA, i % 1000, i, b'%d:' % i * 50); i += 1\n"
    )
    for pause in (0.01, 0.03, 0.1):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = entries(path)
        assert len(found) > 10
        assert all(entry == (jn.DATA, i % 1000, i, 0, b"%d:" % i * 50) for i, entry in enumerate(found))


def test_pages_given_back_are_still_in_the_file(tmp_path):
    path = tmp_path / "j"
    writer = jn.Writer(path, 64 << 20)
    block = bytes(range(256)) * 200
    for i in range(600):  # 30 MB, several windows
        writer.append(jn.DATA, i, i, block)
    writer.close()
    found = entries(path)
    assert len(found) == 600 and all(payload == block for *_, payload in found)


def test_a_new_page_reads_nothing_ahead(tmp_path):
    """Read-ahead at a page fault held the hot path for 20 ms at every 8 MB (LOG.md, 2026-12-07)."""
    writer = jn.Writer(tmp_path / "journal", 1 << 20)
    try:
        maps = Path("/proc/self/smaps").read_text().split(str(writer.path))[1]
        flags = next(line for line in maps.splitlines() if line.startswith("VmFlags"))
        assert "rr" in flags.split()  # random reads: proc(5)
    finally:
        writer.close()


def test_a_full_journal_says_so(tmp_path):
    writer = jn.Writer(tmp_path / "j", 1)
    with pytest.raises(jn.JournalFull, match="journal_bytes"):
        for i in range(1000):
            writer.append(jn.DATA, i, i, b"x" * 60000)


def test_a_journal_larger_than_the_disk_is_refused(tmp_path):
    with pytest.raises(MeasureError, match="MB free"):
        jn.Writer(tmp_path / "j", 1 << 60)


def test_progress_of_a_running_level(tmp_path):
    writer = jn.Writer(tmp_path / "j", 1 << 20)
    assert jn.progress(tmp_path / "none") == jn.Progress(0, 0)
    writer.progress(5, 3)
    assert jn.progress(tmp_path / "j") == jn.Progress(5, 3)


@pytest.mark.parametrize("content", [b"", b"x" * 10000, b"FTSJ" + b"\x09" * 10000])
def test_a_file_that_is_no_journal_is_refused(tmp_path, content):
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(RecordError, match="easure the level again"):
        jn.Reader(tmp_path / "j")


# --- the clock map ----------------------------------------------------------------------------------------------------

OFFSET = 1_764_000_000 * S


def ints(*values):
    return np.array(values, dtype=np.int64)


def test_kernel_stamps_are_mapped_with_the_drift_between_samples():
    clock = ClockMap([(0, OFFSET), (S, S + OFFSET + 80_000)])  # 80 us of drift in a second
    mapped, source = choose(ints(S // 2 + OFFSET + 40_000), ints(S // 2 + 900), clock)
    assert (mapped.tolist(), source) == ([S // 2], "kernel")


def test_fault_58_a_clock_step_makes_its_requests_fall_back():
    late = OFFSET - 5_000_000
    step = ClockMap([(0, OFFSET), (S, S + OFFSET), (2 * S, 2 * S + late), (3 * S, 3 * S + late)])
    assert step.steps == 1
    user = ints(S + 500, S + S // 2)
    assert choose(user + OFFSET - 100, user, step)[1] == "user"
    calm = ints(2 * S + 500, 2 * S + S // 2)
    mapped, source = choose(calm + OFFSET - 5_000_000 - 100, calm, step)
    assert source == "kernel" and mapped.tolist() == (calm - 100).tolist()


@pytest.mark.parametrize(
    ("kernel", "user"),
    [
        (ints(0, 0), ints(100, 200)),  # the platform gave none
        (ints(100, 300_000) + OFFSET, ints(200, 210)),  # maps to after its own user-space stamp
        (ints(100) + OFFSET, ints(5 * S)),  # outside the samples
    ],
)
def test_stamps_that_cannot_be_trusted_fall_back(kernel, user):
    clock = ClockMap([(0, OFFSET), (S, S + OFFSET)])
    mapped, source = choose(kernel, user, clock)
    assert (mapped.tolist(), source) == (user.tolist(), "user")


def test_a_missing_kernel_stamp_is_filled_and_said():
    clock = ClockMap([(0, OFFSET), (S, S + OFFSET)])
    mapped, source = choose(ints(1000 + OFFSET, 0), ints(1500, 2500), clock)
    assert (mapped.tolist(), source) == ([1000, 2500], "mixed")
