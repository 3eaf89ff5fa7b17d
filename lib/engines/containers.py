"""Argument lists that run a command in a container: docker, apptainer, enroot, or pyxis under Slurm. Pure.

Rules: the network is the host's, so that a server listens on this computer's loopback and nowhere else; variables are
handed over by name, so that no list of processes shows a secret; what a command reads and writes lies under the same
path inside and outside. An image is named with its digest where the config gives one. Refuses a digest that a runtime
cannot be told.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.errors import ConfigError
from lib.launches import Container

COMMAND_SCRIPT = Path(__file__).with_name("recipes") / "enroot.rc"      # instead of the image's own entry point
NAME_PREFIX = "first-token-sla-"        # of docker containers, so that what is left behind can be found


def reference(container: Container) -> str:
    """Return the image as its runtime wants it named.

    Raises
    ------
    ConfigError : an image that the runtime cannot start, or a digest that it cannot be told.
    """
    image, digest, runtime = container.image, container.digest, container.runtime
    if container.file:
        return image
    if runtime == "docker":
        return f"{image}@{digest}" if digest else image
    if runtime == "apptainer":
        # Apptainer refuses a tag and a digest together.
        return f"docker://{_untagged(image)}@{digest}" if digest else f"docker://{image}"
    host, slash, rest = image.partition("/")
    named = f"{host}#{rest}" if slash and "." in host else image        # both write the registry before a '#'
    if runtime == "enroot":
        raise ConfigError(
            f"enroot starts image files, and {image!r} is none: run `enroot import -o /some/folder/image.sqsh "
            f"docker://{named}` once and write that path as `image`, without `digest`."
        )
    if digest:
        raise ConfigError(
            f"pyxis pulls {image!r} by its tag and cannot check the digest {digest[:19]}...: leave `digest` out of the "
            "launch, or import the image once with enroot and write the path of the .sqsh file as `image`."
        )
    return named


def wrap(
    container: Container,
    argv: Sequence[str],
    variables: Mapping[str, str],
    folders: Sequence[Path],
    name: str,
    cpus: Sequence[int] = (),
) -> list[str]:
    """Return the argument list that runs `argv` in a container with all GPUs.

    Parameters
    ----------
    variables : the names are passed on; their values come from the caller's environment.
    folders : mounted under their own path, writable.
    name : of the docker container, to end it by.
    cpus : cores it may use; the other runtimes inherit the caller's.

    Raises
    ------
    ConfigError : as for `reference`.
    """
    image, names = reference(container), sorted(variables)
    if container.runtime == "docker":
        return [
            "docker", "run", "--rm", "--init", "--name", name, "--gpus", "all", "--network", "host", "--ipc", "host",
            "--ulimit", "memlock=-1", "--ulimit", "stack=67108864",
            *(["--cpuset-cpus", ",".join(map(str, cpus))] if cpus else []),
            *(part for folder in folders for part in ("--volume", f"{folder}:{folder}")),
            *(part for variable in names for part in ("--env", variable)),
            "--entrypoint", argv[0], image, *argv[1:],
        ]
    if container.runtime == "apptainer":
        # The caller's variables reach the inside by themselves. Its home would bring packages of its own along.
        binds = [part for folder in folders for part in ("--bind", f"{folder}:{folder}")]
        return ["apptainer", "exec", "--nv", "--no-home", *binds, image, *argv]
    if container.runtime == "enroot":
        mounts = [part for folder in folders for part in ("--mount", f"{folder}:{folder}")]
        exported = [part for variable in names for part in ("--env", variable)]
        return ["enroot", "start", "--rw", "--rc", str(COMMAND_SCRIPT), *mounts, *exported, image, *argv]
    return [
        # A step inside the job's own allocation, beside the one that measures.
        "srun", "--overlap", "--nodes=1", "--ntasks=1", f"--container-image={image}", "--no-container-mount-home",
        "--no-container-entrypoint", f"--container-mounts={','.join(f'{folder}:{folder}' for folder in folders)}",
        *argv,
    ]


def present(container: Container) -> list[str] | None:
    """Return the argument list that succeeds if the image is on this computer; None where only starting tells."""
    return ["docker", "image", "inspect", reference(container)] if container.runtime == "docker" else None


def identity(container: Container) -> list[str] | None:
    """Return the argument list that prints the id and the digests of the image here; None where no one tells."""
    if container.runtime != "docker":
        return None
    return ["docker", "image", "inspect", "--format", '{{.Id}} {{join .RepoDigests " "}}', reference(container)]


def main_process(container: Container, name: str) -> list[str] | None:
    """Return the argument list that prints the process id of the container's first process.

    docker's containers are no children of the command that started them; those of the other runtimes are.
    """
    return ["docker", "inspect", "--format", "{{.State.Pid}}", name] if container.runtime == "docker" else None


def ending(container: Container, name: str) -> list[str] | None:
    """Return the argument list that removes what a killed client leaves behind; None where nothing is left."""
    return ["docker", "rm", "--force", name] if container.runtime == "docker" else None


def pulling(container: Container) -> list[str]:
    """Return the argument list that has the image at hand before a server's time limit runs."""
    image = reference(container)
    return {
        "docker": ["docker", "pull", image],
        "apptainer": ["apptainer", "exec", "--no-home", image, "true"],     # fills its cache
        "enroot": ["test", "-e", image],
        "pyxis": ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--container-image={image}", "true"],
    }[container.runtime]


def _untagged(image: str) -> str:
    """Return an image's name without its tag; a colon before the last slash is a port."""
    folder, slash, last = image.rpartition("/")
    return folder + slash + last.partition(":")[0]
