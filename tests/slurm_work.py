"""What a test's job does on its node: WHAT ROOT LAUNCH TARGET. It stands for the execution of notebook 02.

    take      measure the launch of a miniature study under ROOT, then leave the target as papermill would
    refuse    fail as a measurement does that says why
    linger    say that it began, and stay
    shirk     end with 0 and leave nothing, as a task does that traps SIGTERM
    attend    as leave, but wait for the file LAUNCH.go
    leave     say that it began, wait a moment, and leave the target and nothing else, as for 01_build
"""

import json
import os
import sys
import time
from pathlib import Path

from lib.errors import tell


def main() -> None:
    what, root, launch, target = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    seen = {"node": os.environ["STUDY_NODE"], "job": os.environ["STUDY_JOB"], "began": time.monotonic(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "slurm": [n for n in os.environ if n[:6] == "SLURM_" and n != "SLURM_CONF"]}  # where the cluster is
    if what in ("linger", "leave", "attend"):
        (root / f"{launch}.began").write_text(json.dumps(seen))
        until = time.monotonic() + (1 if what == "leave" else 300)
        while time.monotonic() < until and not (what == "attend" and (root / f"{launch}.go").exists()):
            time.sleep(0.05)
    if what in ("take", "refuse"):
        from tests import mini_study

        mini_study.work(root, launch, refuse=what == "refuse")
    if what in ("take", "leave", "attend"):
        target.write_text(json.dumps(seen | {"ended": time.monotonic()}))


if __name__ == "__main__":
    tell(main)
