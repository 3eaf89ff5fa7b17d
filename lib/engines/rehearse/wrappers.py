"""Unwrap a command line that starts an engine in a container or under another program, as that program reads it.

Known: docker run, apptainer exec and run, singularity likewise, enroot start, srun, mpirun, env, nice, taskset.
Refused: an option that the wrapper does not have, with its own exit status. Rule: what is left is exactly what the
engine would be given.
"""

from dataclasses import dataclass
from pathlib import Path


class WrapperRefused(Exception):
    """A wrapper that would not start the engine; `status` is its own exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Wrapper:
    """How a wrapper is called: words after its name, options with a value, switches, and whether an image follows."""

    verbs: tuple[str, ...]
    valued: frozenset[str]
    switches: frozenset[str]
    image: bool
    status: int  # exit status for an unknown option


@dataclass(frozen=True)
class Unwrapped:
    """What is left: the engine's own words, the image it runs in (None outside a container), the wrappers' names."""

    words: tuple[str, ...]
    image: str | None
    wrappers: tuple[str, ...]
    environment: tuple[str, ...]  # what containers were told to set or pass on: NAME or NAME=value


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


APPTAINER = Wrapper(
    ("exec", "run"),
    _set("--bind -B --env --env-file --pwd --home -H --overlay -o --mount --workdir -W --network"),
    _set("--nv --cleanenv -e --contain -c --containall -C --no-home --writable-tmpfs --ipc -i --pid -p --no-mount"),
    True,
    1,
)
WRAPPERS = {
    "docker": Wrapper(
        ("run",),
        _set(
            "--name -e --env --env-file -v --volume --mount -p --publish --gpus --ipc --network --net --shm-size "
            "--ulimit --user -u --entrypoint --workdir -w --cpuset-cpus --cpus --pull --label -l --memory -m --cap-add "
            "--security-opt --device --runtime --hostname --platform --stop-timeout --group-add --tmpfs"
        ),
        _set("--rm -i --interactive -t --tty -it --init --privileged --read-only"),
        True,
        125,
    ),
    "apptainer": APPTAINER,
    "singularity": APPTAINER,
    "enroot": Wrapper(("start",), _set("--mount -m --env -e --rc -c --conf -f"), _set("--rw -w --root -r"), True, 1),
    "srun": Wrapper(
        (),
        _set(
            "--container-image --container-mounts --container-name --container-workdir --container-env --ntasks -n "
            "--nodes -N --gres --gpus --gpus-per-node --cpus-per-task -c --mpi --partition -p --account -A --time -t "
            "--job-name -J --output -o --error -e --input -i --nodelist -w --export --chdir -D --jobid --mem "
            "--ntasks-per-node --kill-on-bad-exit"
        ),
        _set(
            "--exclusive --overlap -Q --quiet -u --unbuffered -l --container-mount-home --no-container-mount-home "
            "--container-entrypoint --no-container-entrypoint --container-writable --container-remap-root"
        ),
        False,
        1,
    ),
    "mpirun": Wrapper(
        (),
        _set("-n -np --np -x --hostfile -H --host --map-by --bind-to --mca -mca --rank-by"),
        _set("--oversubscribe --allow-run-as-root --tag-output --report-bindings --quiet -q"),
        False,
        1,
    ),
    "env": Wrapper((), _set("-u --unset -C --chdir"), _set("-i --ignore-environment"), False, 125),
    "nice": Wrapper((), _set("-n --adjustment"), frozenset(), False, 125),
    "taskset": Wrapper((), frozenset(), _set("-c --cpu-list -a"), False, 1),
}
TWO_VALUES = _set("--mca -mca")
OWN_ARGUMENT = {"taskset": 1}  # plain words of the wrapper before the command


def unwrap(command: list[str]) -> Unwrapped:
    """Take wrappers off, outermost first.

    Raises
    ------
    WrapperRefused : an option that a wrapper does not have, or nothing left to start.
    """
    words, image = list(command), None
    names: list[str] = []
    environment: list[str] = []
    while words and Path(words[0]).name in WRAPPERS:
        name = Path(words[0]).name
        found = WRAPPERS[name]
        names.append(name)
        words, inner, told = _off(name, found, words[1:])
        image, environment = inner or image, environment + told
    if not words and image is None:
        raise WrapperRefused(f"{' '.join(names)}: nothing to start", 1)
    return Unwrapped(tuple(words), image, tuple(names), tuple(environment))


def _off(name: str, wrapper: Wrapper, words: list[str]) -> tuple[list[str], str | None, list[str]]:
    place, image = 0, None
    told: list[str] = []
    entry: list[str] = []  # the program in place of the image's own
    if wrapper.verbs:
        if not words or words[0] not in wrapper.verbs:
            raise WrapperRefused(f"{name}: expected {' or '.join(wrapper.verbs)}, got {words[:1]}", wrapper.status)
        place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        option, equals, value = words[place].partition("=")
        place += 1
        if option in wrapper.valued:
            if not equals:
                count = 2 if option in TWO_VALUES else 1
                value = " ".join(words[place : place + count])
                place += count
            if option == "--container-image":
                image = value
            if option == "--entrypoint":
                entry = [value]
            if (option in ("-e", "--env", "-x", "--container-env") and name != "srun") or option == "--container-env":
                told += value.split(",")
        elif option not in wrapper.switches:
            raise WrapperRefused(f"{name}: unknown option: {option}", wrapper.status)
    place += place < len(words) and words[place] == "--"
    while name == "env" and place < len(words) and "=" in words[place].partition("/")[0]:
        told.append(words[place])
        place += 1
    place += OWN_ARGUMENT.get(name, 0)
    if wrapper.image:
        if place >= len(words):
            raise WrapperRefused(f"{name}: requires an image", wrapper.status)
        image, place = words[place], place + 1
    return [*entry, *words[place:]], image, told
