"""Run the whole suite, or one part of it: python -m tests.torture [--trials 200] [--seed 1] [--hours 8] [--only kills].

Parts: tables (10 million events to tables), client (20 million events), streams (a million random streams), kills.
The results are printed and lie in build/torture.json; the exit status is 1 where a promise was not kept. Kills go on
where an earlier sitting with the same seed stopped; build/torture/trials.jsonl holds every one.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from typing import Any

from lib import paths
from lib.records import write_whole
from tests.torture import kills, load, streams

PARTS = ("tables", "client", "streams", "kills")
INPUTS = 1_000_000


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--trials", type=int, default=200)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--hours", type=float, default=8.0)
    asked.add_argument("--at-once", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    asked.add_argument("--only", choices=PARTS)
    given = asked.parse_args()
    until = time.monotonic() + given.hours * 3600
    folder = paths.BUILD / "torture"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        if left.name != kills.LOG:  # studies of an earlier sitting may hold older code
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
    result: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "load": os.getloadavg()[0]}
    for part in PARTS if given.only is None else (given.only,):
        began = time.monotonic()
        if part == "kills":
            found = kills.run(given.trials, given.seed, folder, at_once=given.at_once, until=until)
            found["ok"] = not found["losses"]
            print(kills.table(found), flush=True)
        elif part == "streams":
            found = streams.fuzz(INPUTS, given.seed, until)
            found["ok"] = not found["failures"] and found["grown_mb"] < 100
        else:
            found = getattr(load, part)(folder)
        result[part] = found | {"took_s": round(time.monotonic() - began, 1)}
        if part != "kills":
            print(f"{part}: " + ", ".join(f"{name} {value}" for name, value in result[part].items()), flush=True)
        write_whole(paths.BUILD / "torture.json", json.dumps(result, indent=1).encode())
    broken = [part for part in PARTS if not result.get(part, {}).get("ok", True)]
    print(f"Not kept: {', '.join(broken)}." if broken else "Every promise tried was kept.", "See build/torture.json.")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
