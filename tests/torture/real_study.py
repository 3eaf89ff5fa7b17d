"""Take one launch of a study under ROOT with its real engine: python tests/torture/real_study.py ROOT LAUNCH."""

import os
import sys
from pathlib import Path

from lib import paths
from lib.errors import tell
from lib.measure import hostprobe, session


def main() -> None:
    paths.CONFIG, paths.RECORDS = Path(sys.argv[1]) / "config", Path(sys.argv[1]) / "records"
    hostprobe.probe = lambda: {"bandwidth_bytes_s": 1e12, "flop_s": {"float32": 1e11}, "cores": 2, "seconds": 0.0}
    os.environ["STUDY_TERMINAL"] = "none"
    session.take("mini", "default", sys.argv[2])


if __name__ == "__main__":
    tell(main)
