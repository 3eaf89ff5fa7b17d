"""A real Slurm on this one machine: a controller and two nodes of eight make-believe GPUs each. For tests, as root.

The GPUs are character devices that nobody opens. No cgroups, no database, no systemd; ports of its own, so that it
stands beside another Slurm. Everything lies in one folder and ends with `stop`.
"""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged")
PACKAGES = "slurmctld slurmd slurm-client munge"
NODES = ("node01", "node02")
GPUS, CORES, MEMORY_MB = 8, 8, 16000

CONF = """
ClusterName=box
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=2
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cores} Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN"
)


def lacking() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    missing = [name for name in NEEDED if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install -y --no-install-recommends {PACKAGES}"
    return None if os.geteuid() == 0 else "starting Slurm's daemons needs root"


class Box:
    """The cluster. `folder` must have a short path: a socket lies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.environment = os.environ | {
            "SLURM_CONF": str(self.conf),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }

    def start(self) -> "Box":
        """Start all daemons and wait until both nodes are idle."""
        for name in ("state", "spool", "log", "run", "munge", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o755)
        for number in range(GPUS):
            device = self.folder / "dev" / f"gpu{number}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        host, ports = socket.gethostname().partition(".")[0], _free(1 + len(NODES))
        nodes = [
            NODE.format(name=n, host=host, port=p, cores=CORES, memory=MEMORY_MB, gpus=GPUS)
            for n, p in zip(NODES, ports[1:], strict=True)
        ]
        self.conf.write_text(CONF.format(host=host, port=ports[0], folder=self.folder, nodes="\n".join(nodes)))
        gres = f"AutoDetect=off\nName=gpu File={self.folder}/dev/gpu[0-{GPUS - 1}]\n"
        (self.folder / "gres.conf").write_text(gres)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # named, never loaded
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.folder / "munge").chmod(0o700)
        run, logs = self.folder / "run", self.folder / "log"
        self._do(
            ["munged", "--force", f"--socket={run}/munge.sock", f"--key-file={key}", f"--pid-file={run}/munged.pid",
             f"--log-file={logs}/munged.log", f"--seed-file={self.folder}/munge/seed", "--num-threads=2"]
        )  # fmt: skip
        self._do(["slurmctld"])
        for name in NODES:
            (self.folder / "spool" / name).mkdir(exist_ok=True)
            self._do(["slurmd", "-N", name])
        limit = time.monotonic() + 20
        while self.states() != ["idle", "idle"]:
            if time.monotonic() > limit:
                raise RuntimeError(f"Slurm is not ready: {self.states()} {self._logs()}")
            time.sleep(0.1)
        return self

    def states(self) -> list[str]:
        """State of each node."""
        return self.ask("sinfo", "-h", "-N", "-o", "%T").split()

    def ask(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=30)
        return done.stdout

    def kill_node(self, name: str) -> None:
        """Let a node die: its daemon, its steps and what they run; the controller is told, as its own checks would."""
        for pid in self._of(name):
            for below in [*_below(pid), pid]:
                with suppress(ProcessLookupError):
                    os.kill(below, signal.SIGKILL)
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=killed")

    def stop(self) -> None:
        """End every job and daemon."""
        self.ask("scancel", "--user=root")
        time.sleep(0.3)
        for name in ("slurmd-node01", "slurmd-node02", "slurmctld", "munged"):
            _end(self.folder / "run" / f"{name}.pid")
        for pid in _stepds(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _of(self, name: str) -> list[int]:
        """The daemon of a node and its steps, which are no children of it."""
        found = [int((self.folder / "run" / f"slurmd-{name}.pid").read_text())]
        return found + [pid for pid in _stepds(self.folder) if _named(pid, name)]

    def _do(self, command: list[str]) -> None:
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=30)

    def _logs(self) -> str:
        return " ".join(p.read_text()[-500:] for p in (self.folder / "log").glob("slurm*.log"))


def _free(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _stepds(folder: Path) -> list[int]:
    """Process ids of the step daemons of this Slurm."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name = (path / "comm").read_text().strip()
            if name.startswith("slurmstepd") and f"SLURM_CONF={folder}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
    return found


def _named(pid: int, node: str) -> bool:
    """Whether a step daemon is of a node: only what it started knows."""
    for below in _below(pid):
        with suppress(OSError):
            if f"_NODE={node}\0".encode() in Path(f"/proc/{below}/environ").read_bytes():
                return True
    return False


def _below(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in re.findall(r"\d+", (task / "children").read_text()):
                found += [*_below(int(child)), int(child)]
    return found


def _end(pid_file: Path) -> None:
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        limit = time.monotonic() + 5
        while time.monotonic() < limit:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
