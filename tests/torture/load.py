"""The study under load: a client that takes twenty million events, and ten million token events turned into tables.

Each part runs in a process of its own, whose peak of memory is its own word (VmHWM). Limits are for two idle cores.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib import paths, records
from lib.analyse import tables as making
from lib.config import Study
from lib.measure import groundtruth
from lib.measure import journal as jn
from lib.measure.client import peak_mb
from lib.measure.clientplan import Plan, Request
from tests import synthetic

EVENTS = 20_000_000
CLIENT_MB = 500
STREAMS, TOKENS, GAP_MS = 1000, 1000, 25.0  # 40,000 events/s: what one client process is given at most
TABLE_EVENTS, TABLE_S, TABLE_MB = 10_000_000, 20.0, 1500
SERVERS = ("one", "two", "three")


def client(folder: Path, events: int = EVENTS) -> dict[str, Any]:
    """Let one client take so many events from the ground-truth server; its memory, and whether all arrived."""
    answers = max(STREAMS, events // TOKENS)
    body = json.dumps({"max_tokens": TOKENS, "stream": True, "prompt": "x"}).encode()
    asked = tuple(Request(f"r{i}", "/v1/completions", body, planned_output_tokens=TOKENS) for i in range(answers))
    if shutil.disk_usage(folder).free < 2 * 640 * events:
        return {"skipped": f"{folder} has no room for a journal of {640 * events / 1e9:.0f} GB"}
    with groundtruth.serve(ttft_ms=200.0, itl_ms=GAP_MS) as server:
        if server.kind != "c":
            return {"skipped": "no C compiler, and the ground-truth server's Python twin is too slow"}
        plan = Plan(port=server.port, requests=asked, journal=str(folder / "load.journal"), concurrency=STREAMS,
                    ramp_s=5.0, timeout_s=3600.0)
        plan.write(folder / "load.plan.json")
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "lib.measure.client", str(folder / "load.plan.json")],
                              cwd=paths.ROOT, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    reader = jn.Reader(Path(plan.journal))
    whole, ended = 0, {}
    for kind, _, at in reader.scan():
        if kind == jn.END:
            whole += not bytes(reader.payload(at))
        elif kind == jn.DONE:
            ended = json.loads(bytes(reader.payload(at)))
    size = Path(plan.journal).stat().st_size
    del reader
    Path(plan.journal).unlink()
    peak = ended.get("peak_mb", float("nan"))
    return {
        "events": answers * TOKENS, "answers": answers, "whole": whole, "seconds": round(seconds, 1),
        "events_s": round(answers * TOKENS / seconds), "cpu_s": round(ended.get("cpu_s", float("nan")), 1),
        "client_mb": round(peak, 1), "journal_gb": round(size / 1e9, 2),
        "ok": done.returncode == 0 and whole == answers and peak <= CLIENT_MB,
    }  # fmt: skip


def _study() -> Study:
    return synthetic.study(levels=(16, 32, 64, 128), seconds=60.0, repeats=3)


def write_records(folder: Path) -> int:
    """Write records of at least `TABLE_EVENTS` token events; how many there are."""
    study, events = _study(), 0
    for seed, name in enumerate(SERVERS):
        server = synthetic.Server(name=name, seed=seed, output_tokens=512, ttft_growth=0.0, tpot_growth=0.0)
        path = synthetic.write_launch(folder, study, server)
        events += len(records.read(path).table["event_ns"].combine_chunks().flatten())
    return events


def make_tables(folder: Path) -> dict[str, float]:
    """Make the tables of those records; seconds and the peak of this process's memory."""
    study = _study()
    began = time.monotonic()
    making.build(study, folder, folder.parent / "tables", about_h100={})
    return {"seconds": time.monotonic() - began, "mb": peak_mb()}


def tables(folder: Path) -> dict[str, Any]:
    """Turn ten million token events into tables, in a process of its own."""
    def child(what: Callable[[Path], Any]) -> Any:
        done = subprocess.run([sys.executable, "-m", "tests.torture.load", what.__name__, str(folder / "records")],
                              cwd=paths.ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(done.stdout.splitlines()[-1])

    events = child(write_records)
    made = child(make_tables)
    shutil.rmtree(folder / "records")
    shutil.rmtree(folder / "tables", ignore_errors=True)
    return {"events": events, "seconds": round(made["seconds"], 2), "peak_mb": round(made["mb"]),
            "ok": events >= TABLE_EVENTS and made["seconds"] < TABLE_S and made["mb"] < TABLE_MB}


if __name__ == "__main__":
    print(json.dumps({"write_records": write_records, "make_tables": make_tables}[sys.argv[1]](Path(sys.argv[2]))))
