"""Style and types, beside the other tests: mypy's minute on one core need not come before them."""

import subprocess

from lib import paths


def test_ruff_and_mypy_find_nothing():
    done = subprocess.run(
        ["make", "--no-print-directory", "lint"], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
