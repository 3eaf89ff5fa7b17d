"""Make what a profile's launches need: models, quantized checkpoints, engines, environments. What fails is told.

Refuses nothing by itself. Rule: for a launch that this computer can never run nothing is fetched or built.

python -m lib.engines.prepare h100
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lib import config, depths
from lib.config import Launch
from lib.engines import budget, build, inside, made, registry
from lib.engines.gpu import GpuEngine
from lib.errors import EngineError, StudyError, tell
from lib.glance import Table
from lib.progress import Progress

Made = dict[str, Any]
AT_ONCE = 2                 # a recipe is mostly one thread; each needs about 2 GB of memory


def launch(tokenizer: str, asked: Launch, progress: Callable[[str], None]) -> None:
    """Make what one launch needs, and the artifact that holds the study's tokenizer.

    Raises
    ------
    StudyError : it cannot be made.
    """
    for artifact in dict.fromkeys((tokenizer, *build.of(asked))):
        build.build(artifact, progress)
    registry.of(asked).prepare(asked, progress)


def able(profile: str, depth: str | None = None) -> tuple[list[Launch], dict[str, str]]:
    """Launches that this computer can run, and of the others why it never can."""
    launches = [config.load_launch(profile, name) for name in config.launch_names(profile, depth)]
    absent = {one.name: reason for one in launches if (reason := registry.of(one).absent(one))}
    return [one for one in launches if one.name not in absent], absent


def needed(profile: str, depth: str | None = None) -> list[str]:
    """Artifacts that the launches this computer can run need, each after the one it starts from."""
    launches, _ = able(profile, depth)
    wanted = {name for one in launches for made in build.of(one) for name in (build.recipe(made).source, made)}
    if launches:
        wanted.add(config.load_study(profile).model.tokenizer)
    return [name for name in build.needed(profile, depth) if name in wanted]


def build_all(profile: str, depth: str = "default") -> list[Made]:
    """Make what a profile and those beside it need, two models at a time, with progress; what fails is told and the
    rest goes on. Where the node has a price its time is paid by the minute, and MAX_COST ends it.

    A rehearsal needs nothing real: its stand-ins make what they need when a launch starts.

    Returns
    -------
    manifests in build order; for what was not made {"artifact", "failed": paragraph}.
    """
    if depth == depths.REHEARSAL:
        return []
    launches, absent = able(profile, depth)
    study = config.load_study(profile, depth)
    profiles = [profile, *(other.profile for other in config.beside(study))]
    names = list(dict.fromkeys(name for one in profiles for name in needed(one, depth)))
    todo, under_way, stopped = [n for n in names if build.cached(n) is None], set[str](), threading.Event()
    total = sum(build.recipe(name).seconds for name in todo)

    def stage(text: str) -> None:
        if stopped.is_set():
            raise EngineError("stopped")
        account.keep_paying(f"making what {profile} serves")
        left = sum(build.recipe(n).seconds for n in todo if build.cached(n) is None)
        shown.at(total - left, " and ".join(sorted(under_way)) or text)

    def one(name: str) -> Made:
        def told(text: str) -> None:
            under_way.add(f"building {name}")
            stage(text)

        try:
            return build.build(name, told)
        except StudyError as error:
            return {"artifact": name, "failed": str(error)}
        finally:
            under_way.discard(f"building {name}")

    with (
        budget.spending(study, None) as account,
        Progress(f"models of {profile}", total) as shown,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        try:
            out = list(pool.map(one, names))
            for launch_ in launches:
                engine = registry.of(launch_)
                if isinstance(engine, GpuEngine) and engine.steps(launch_):
                    out += _made(engine, launch_, stage)
        except BaseException:       # Ctrl-C: the recipes under way end with us
            stopped.set()
            raise
    return out + [{"artifact": name, "failed": reason} for name, reason in absent.items()]


def glance(manifests: list[Made]) -> Table:
    """Show what was built, one row per artifact."""
    rows = [
        (m["artifact"], m["failed"], None, None, None) if "failed" in m else
        (m["artifact"], m["format"], f"{m['bytes'] / 1e6:.0f} MB", f"{m['seconds']:.0f} s",
         m["source"] or _from(build.recipe(m["artifact"])))
        for m in manifests
    ]
    return Table(("artifact", "weights", "size", "built in", "made from"), rows)


def _from(recipe: build.Recipe) -> str:
    if recipe.fetched:
        return "its repository"
    return "a seed" if recipe.format == inside.FORMAT else "the model's package"


def _made(engine: GpuEngine, one: Launch, progress: Callable[[str], None]) -> list[Made]:
    try:
        engine.prepare(one, progress)
    except StudyError as error:
        return [{"artifact": one.name, "failed": str(error)}]
    folders = made.served(engine.steps(one), engine.made(one))
    return [made.verify(folder) | {"artifact": folder.name, "format": one.precision, "source": one.artifact}
            for folder in folders]


def main() -> None:
    """Command line: make what a profile needs."""
    failed = [m["failed"] for m in build_all(sys.argv[1]) if "failed" in m]
    if failed:
        raise EngineError(" ".join(failed))


if __name__ == "__main__":
    tell(main)
