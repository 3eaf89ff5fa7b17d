"""Execute one notebook by papermill, so that only a whole result appears under its name.

Ended with its parent: a killed make leaves no measurement running behind it.

What papermill alone does not do: refuse a parameter the notebook does not have (it only warns), tell a refusal of
ours as a paragraph instead of a stack trace, and keep a failed copy from looking up to date to make.

    python -m lib.execute notebooks/02_measure.ipynb build/cpu/02_measure-vllm-bf16.ipynb profile=cpu launch=vllm-bf16
"""

import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from lib import errors, paths
from lib.errors import ConfigError, StudyError, tell

PR_SET_PDEATHSIG = 1  # linux/prctl.h
KERNEL_START_S = 120  # a busy laptop needs longer than papermill's minute


def execute(source: Path, target: Path, parameters: dict[str, str]) -> None:
    """Run `source` with `parameters` (all text) and put the executed copy at `target`.

    Raises
    ------
    ConfigError : a parameter the notebook does not declare, or a notebook without a parameters cell.
    StudyError : what the notebook itself refused; the executed copy is then `<target>.failed.ipynb`.
    """
    known = papermill.inspect_notebook(str(source))
    unknown = sorted(set(parameters) - set(known))
    if unknown or (parameters and not known):
        raise ConfigError(
            f"{source.name} has no parameter {', '.join(unknown)}; it knows {', '.join(known) or 'none'}."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    failed = target.with_suffix(".failed.ipynb")
    working = target.with_suffix(f".{os.getpid()}.tmp.ipynb")
    os.environ["PYTHONPATH"] = str(paths.ROOT)  # the kernel imports lib whatever its working directory
    try:
        with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
            papermill.execute_notebook(
                str(source),
                str(working),
                parameters,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=KERNEL_START_S,
                cwd=str(paths.ROOT),
                config=_private(sockets),
            )
        working.replace(target)
        failed.unlink(missing_ok=True)
    except PapermillExecutionError as error:
        working.replace(failed)
        if isinstance(getattr(errors, error.ename, None), type):
            raise StudyError(error.evalue) from error
        raise
    except (DeadKernelError, CellTimeoutError) as error:
        raise StudyError(
            f"The kernel that ran {source.name} died ({str(error).splitlines()[0]}). Most often memory ran out, or it "
            f"was killed. Nothing finished is lost: run the same command again and it goes on where it stopped."
        ) from error
    finally:
        working.unlink(missing_ok=True)


def _private(folder: str) -> Config:
    """Let the kernel be spoken to through sockets in a folder of this user's alone: no port others could reach or take.

    Without a folder of its own, every kernel that shares a working directory would share the same socket names. It is
    ended by an interrupt first, and calls that an error; whatever ends one is told by its client.
    """
    return Config(
        {
            "KernelManager": {"transport": "ipc", "ip": str(Path(folder) / "socket")},
            "NotebookClient": {"extra_arguments": ["--log-level=CRITICAL"]},
        }
    )


def main() -> None:
    """Command line: notebook, target, then name=value pairs."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # end like Ctrl-C: kernel first, no half file
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    source, target, *pairs = sys.argv[1:]
    execute(Path(source), Path(target), dict(pair.split("=", 1) for pair in pairs))


if __name__ == "__main__":
    tell(main)
