"""Style and types, beside the other tests: mypy's half minute on one core need not come before them."""

import os
import subprocess

from lib import paths


def test_ruff_and_mypy_find_nothing():
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "--no-print-directory", "lint"], cwd=paths.ROOT, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
