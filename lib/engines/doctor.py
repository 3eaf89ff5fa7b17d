"""Look a computer over before money is spent on it: what is there, what is missing or wrong, and the way out of each.

    python -m lib.engines.doctor PROFILE DEPTH

Takes seconds and changes nothing; without a GPU it says so and looks at the rest. A finding is `ok`, `doubt` (numbers
may suffer), `wrong` (launches will fail) or `unknown`. Rule: every finding that is not ok says what to do next.
"""

import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lib import config, paths
from lib.config import Launch, Study
from lib.engines import build, cards, computer, containers, nvml
from lib.errors import ConfigError, tell
from lib.launches import Container

OK, DOUBT, WRONG, UNKNOWN = "ok", "doubt", "wrong", "unknown"
CUDA = {  # what each engine version was built for; a driver of the same major version runs it
    ("vllm", "0.6.2"): (12, 1),
    ("vllm", "0.24.0"): (13, 0),  # cuda-toolkit of its lock
    ("tensorrt_llm", "0.12.0"): (12, 5),
    ("tensorrt_llm", "1.2.1"): (13, 1),
}
IDLE_BYTES = 1 << 30  # of GPU memory that a driver itself may hold
FILES = 65536  # open files that a server with some hundred streams and eight ranks may need
SHARED_BYTES = 8 << 30  # of /dev/shm, where ranks exchange what does not go over NVLink
SAME_NAME = re.compile(r"[A-Z]+\d+")  # H100 out of "NVIDIA H100 80GB HBM3"
COMMAND_S = 10.0
RUNTIMES = {"docker": "docker", "apptainer": "apptainer", "enroot": "enroot", "pyxis": "srun"}


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    what: str
    state: str
    found: str
    way_out: str = ""


def look(study: Study, launches: list[Launch]) -> list[Finding]:
    """Look the computer over for a study's launches."""
    return [*gpus(study, launches), *_files(study, launches), *_containers(launches), *_limits(), *_computer()]


def gpus(study: Study, launches: list[Launch]) -> Iterator[Finding]:
    """GPUs: how many and which, driver, links, clocks, power, ECC, MIG, processes."""
    wanted = study.hardware.gpus
    with nvml.opened() as found:
        if isinstance(found, str):
            state = WRONG if wanted else OK
            yield Finding("GPUs", state, f"none: {found}", f"run this on a node with {wanted} GPUs, in a job that was "
                          "given them; make rehearse tries the study without" if wanted else "")  # fmt: skip
            return
        about = found.about()
        yield _count(about, study)
        yield from _cards(about, launches)
        yield from _driver(found.driver(), launches)
        if wanted > 1:
            yield _links(about, found.unlinked())
        yield from _health(about[: wanted or None])


def _count(about: list[dict[str, Any]], study: Study) -> Finding:
    names = sorted({str(one["name"]) for one in about})
    said, wanted = f"{len(about)} x {', '.join(names)}", study.hardware.gpus
    model = SAME_NAME.search(study.hardware.name.upper())
    if len(about) < wanted:
        return Finding("GPUs", WRONG, said, f"the profile needs {wanted}: ask for a whole node, or see that no GPU "
                       "has fallen off the bus (nvidia-smi, dmesg)")  # fmt: skip
    if len(names) > 1 or (wanted and model and model[0] not in names[0].upper()):
        return Finding("GPUs", DOUBT, said, f"the profile is written for {study.hardware.name}: records will name what "
                       "was found, and bounds and predictions will not fit")  # fmt: skip
    return Finding("GPUs", OK, said)


def _cards(about: list[dict[str, Any]], launches: list[Launch]) -> Iterator[Finding]:
    """Which launches that any GPU may run fit this one."""
    told = [{"name": str(one["name"]), "memory_mib": str((one["memory_bytes"] or 0) / (1 << 20)),
             "compute": str(one["compute"])} for one in about]  # fmt: skip
    asked = {launch.name: cards.none_fits(launch.card, told) for launch in launches if launch.card}
    fitting, large = [n for n, why in asked.items() if not why], {n: why for n, why in asked.items() if why}
    if asked:
        said = f"{', '.join(fitting) or 'no launch'}" + "".join(f"; not {name}: {why}" for name, why in large.items())
        yield _if(not fitting, "what fits", said, WRONG, "make report PROFILE=one-gpu, whose model is small")


def _driver(told: dict[str, Any], launches: list[Launch]) -> Iterator[Finding]:
    has = told["cuda"]
    said = f"{told['driver']}, for CUDA up to {has[0]}.{has[1]}"
    needs = {(name.engine, str(name.version)) for name in launches} & set(CUDA)
    old = [key for key in sorted(needs) if CUDA[key][0] > has[0]]
    minor = [key for key in sorted(needs) if CUDA[key][0] == has[0] and CUDA[key] > has]
    listed = {key: f"{key[0]} {key[1]} (CUDA {CUDA[key][0]}.{CUDA[key][1]})" for key in needs}
    if old:
        yield Finding("driver", WRONG, said, f"too old for {', '.join(listed[k] for k in old)}: have it updated, "
                      "or leave these launches out by removing their files from the profile")  # fmt: skip
    elif minor:
        yield Finding("driver", DOUBT, said, f"older than {', '.join(listed[k] for k in minor)} was built for: by "
                      "CUDA's minor-version compatibility it runs, and an update is the safe way")  # fmt: skip
    else:
        yield Finding("driver", OK, said)


def _links(about: list[dict[str, Any]], unlinked: list[tuple[int, int]]) -> Finding:
    links = [one["links"] for one in about]
    said = f"active links per GPU: {', '.join('?' if n is None else str(n) for n in links)}"
    if unlinked:
        pairs = ", ".join(f"{a}-{b}" for a, b in unlinked[:4])
        return Finding("NVLink", WRONG, f"{said}; no NVLink between {pairs}", "tensor parallelism would go over PCIe: "
                       "see `nvidia-smi topo -m`, and that the fabric manager runs (nvidia-fabricmanager)")  # fmt: skip
    if len(set(links)) > 1:
        return Finding("NVLink", DOUBT, said, "GPUs differ: one has a link down; have the node reset or take another")
    return Finding("NVLink", OK, said)


def _health(about: list[dict[str, Any]]) -> Iterator[Finding]:
    def which(true: Any) -> str:
        return ", ".join(str(i) for i, one in enumerate(about) if true(one))

    lowered = which(lambda g: g["power_limit_w"] and g["power_default_w"] and g["power_limit_w"] < g["power_default_w"])
    limit = about[0]["power_limit_w"]
    yield _if(lowered, "power limit", f"{limit:.0f} W" if limit else "not told", DOUBT, f"below its default on GPU "
              f"{lowered}: nvidia-smi -pl DEFAULT (as root), or state the limit with the results")  # fmt: skip
    slow = which(lambda g: [r for r in g["reasons"] if r != "power limit"])
    why = "; ".join(sorted({r for g in about for r in g["reasons"]}))
    top = about[0]["clock_max_mhz"]
    yield _if(slow, "clocks", f"at most {top} MHz" + (f"; {why}" if why else ""), DOUBT, f"held down on GPU {slow}: "
              "let them cool, undo locked clocks (nvidia-smi -rgc, -rac, as root), or take another node")  # fmt: skip
    broken = which(lambda g: g["ecc_uncorrected"])
    off = which(lambda g: g["ecc"] is False)
    yield _if(broken, "ECC errors", f"uncorrected on GPU {broken}" if broken else "none uncorrected", WRONG,
              "this memory lies: take another node and report this one")  # fmt: skip
    yield _if(off, "ECC", "off on GPU " + off if off else "on", DOUBT, "memory is faster without it than in a data "
              "centre: nvidia-smi -e 1 and a reset (as root), or state it")  # fmt: skip
    split = which(lambda g: g["mig"])
    yield _if(split, "MIG", "on for GPU " + split if split else "off", WRONG, "an engine needs whole GPUs: ask for a "
              "node without MIG")  # fmt: skip
    busy = which(lambda g: g["processes"] or (g["memory_used_bytes"] or 0) > IDLE_BYTES)
    pids = sorted({pid for g in about for pid in g["processes"] or ()})
    yield _if(busy, "other work on the GPUs", f"processes {', '.join(map(str, pids)) or 'of others'} on GPU {busy}" if
              busy else "none", WRONG, "a node never measures beside other work: end what is yours (nvidia-smi lists "
              "it), or ask for the node exclusively")  # fmt: skip


def _if(trouble: Any, what: str, found: str, state: str, way_out: str) -> Finding:
    return Finding(what, state, found, way_out) if trouble else Finding(what, OK, found)


def _files(study: Study, launches: list[Launch]) -> Iterator[Finding]:
    """Disk, and what of the models is there."""
    place = paths.ARTIFACTS if paths.ARTIFACTS.exists() else paths.ROOT
    free = shutil.disk_usage(place).free
    absent = sorted({name for launch in launches for name in build.of(launch)
                     if not (paths.ARTIFACTS / name).exists()})  # fmt: skip
    linked = bool(os.environ.get(build.MODELS_ENV))  # fetched models then lie in a folder of the user's
    wanting = [name for name in absent if not (linked and build.recipe(name).fetched)]
    needed = sum(build.recipe(name).bytes for name in wanting)
    yield _if(free < needed, "disk", f"{free / 1e9:.0f} GB free", WRONG, f"{len(wanting)} model(s) are missing and "
              f"need about {needed / 1e9:.0f} GB: free some, or make artifacts/ a link to a larger disk")  # fmt: skip
    yield _if(absent, "model files", f"missing: {', '.join(absent)}" if absent else "all there", DOUBT,
              "make report fetches or builds them first; on a cluster do it before the node is paid for")  # fmt: skip
    gated = "llama" in study.model.licence.lower()
    token = bool(os.environ.get("HF_TOKEN")) or (Path.home() / ".cache" / "huggingface" / "token").exists()
    if gated and wanting and study.hardware.gpus:
        yield _if(not token, "licence gate", "a token is set" if token else "no token", WRONG, f"{study.model.name} is "
                  "gated: accept its licence on its page, then set HF_TOKEN, or put the files in place")  # fmt: skip


def _containers(launches: list[Launch]) -> Iterator[Finding]:
    """Runtimes and images that launches name."""
    named = {(c.runtime, c.image, c.digest): c for launch in launches if (c := launch.container)}
    for _, container in sorted(named.items(), key=lambda item: str(item[0])):
        program = RUNTIMES[container.runtime]
        if not shutil.which(program):
            way_out = f"install or load it (module load {program}), or give these launches a `python` of their own"
            yield Finding(f"image {container.image}", WRONG, f"{program} is not on the PATH", way_out)
        else:
            yield _image(container)


def _image(container: Container) -> Finding:
    """Whether the image is at hand: a file on the disk, one that docker has, else fetched when the server starts."""
    what = f"image {container.image}"
    if container.file:
        there = container.file.exists()
        return _if(not there, what, "there" if there else "no such file", WRONG, "pull or import it to that path first")
    fetch = f"{shlex.join(containers.pulling(container))}, before the node is paid for"
    asked = containers.present(container)
    if asked is None:
        return Finding(what, DOUBT, "is fetched at the start", f"{fetch}; or name an image file by its path")
    there = _ends_well(asked)
    return _if(not there, what, "pulled" if there else "not pulled", DOUBT, fetch)


def _limits() -> Iterator[Finding]:
    """Open files, locked memory, shared memory, a port."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = files != resource.RLIM_INFINITY and files < FILES
    yield _if(few, "ulimit -n (open files)", _counted(files), DOUBT, f"raise the hard limit to {FILES} (limits.conf, "
              "or docker --ulimit)")  # fmt: skip
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    yield _if(locked != resource.RLIM_INFINITY, "ulimit -l (locked memory)", _counted(locked), DOUBT,
              "NCCL pins memory: set memlock unlimited (limits.conf, or docker --ulimit memlock=-1)")  # fmt: skip
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0
    yield _if(shared < SHARED_BYTES, "/dev/shm", f"{shared / 1e9:.1f} GB", DOUBT, "ranks exchange data there: docker "
              "--ipc=host, or a larger tmpfs")  # fmt: skip
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
        yield Finding("ports", OK, "a loopback port is free")
    except OSError as error:
        yield Finding("ports", WRONG, f"none on 127.0.0.1 ({error.strerror})", "servers listen there: leave a sandbox "
                      "that forbids it")  # fmt: skip


def _counted(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _computer() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield _if(cores < 4, "cores", f"{cores} ({computer.model()})", DOUBT, "engine and client share them: ask for more "
              "(--exclusive gives all of a node's)")  # fmt: skip
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    governor = path.read_text().strip() if path.exists() else None
    yield _if(governor not in (None, "performance"), "CPU governor", governor or "not told", DOUBT,
              "cpupower frequency-set -g performance (as root), or state it")  # fmt: skip
    yield Finding("memory", OK, f"{computer.free_memory_bytes() / 1e9:.0f} GB free")


def _ends_well(command: list[str]) -> bool:
    try:
        return not subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


def recorded(study: Study, launch: Launch) -> list[dict[str, str]]:
    """Findings as a record keeps them."""
    return [asdict(finding) for finding in look(study, [launch])]


def main() -> int:
    """Command line: profile and depth. Status 1 where something is wrong."""
    profile, depth = sys.argv[1:3]
    study = config.load_study(profile, depth)
    names = config.launch_names(profile)
    if not names:
        raise ConfigError(f"Profile {profile!r} has no launch to look the computer over for.")
    found = look(study, [config.load_launch(profile, name) for name in names])
    for finding in found:
        print(f"{finding.state:8} {finding.what}: {finding.found}")
        if finding.way_out and finding.state != OK:
            print(f"{'':8} -> {finding.way_out}.")
    wrong = sum(f.state == WRONG for f in found)
    print(f"\n{len(found)} things looked at: {wrong} wrong, {sum(f.state == DOUBT for f in found)} in doubt.")
    return 1 if wrong else 0


if __name__ == "__main__":
    tell(main)
