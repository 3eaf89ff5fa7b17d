"""Print what will run on a GPU node: every command line in order, hours and cost of each launch, what they rest on.

Rule: the command lines are those of the engines' own functions, word for word; only the port is found at the start.
"""

import shlex

from lib import config
from lib.config import Launch, Study
from lib.engines import build, containers, registry
from lib.engines.gpu import GpuEngine
from lib.measure import costs
from lib.progress import clock

PORT = 8000


def lines(study: Study) -> list[str]:
    """The node's part of a plan, line by line; empty for a study without GPUs.

    Raises
    ------
    ConfigError : as for loading the launches.
    """
    if not study.hardware.gpus:
        return []
    launches = [config.load_launch(study.profile, name) for name in config.run_order(study)]
    out = ["", f"  On the node ({study.hardware.name}), in the order of what launches teach per dollar:", "",
           "  launch                      layout  fetch     make      starts    measure   GPU-hours    USD   in all"]
    spent, total_h = 0.0, 0.0
    for launch, cost in costs.in_order(study, launches):
        engine = registry.of(launch)
        layout = engine.layout(launch) if isinstance(engine, GpuEngine) else ""
        spent, total_h = spent + (cost.usd or 0.0), total_h + cost.gpu_hours
        money = "     -        -" if cost.usd is None else f"{cost.usd:6.0f} {spent:8.0f}"
        out.append(f"  {launch.name:27} {layout:7} {clock(cost.fetching_s):9} {clock(cost.making_s):9} "
                   f"{clock(cost.starting_s):9} {clock(cost.measuring_s):9} {cost.gpu_hours:9.1f} {money}")
    out += ["", f"  in all {total_h:.0f} GPU-hours" + (f", {spent:.0f} USD" if study.price else "") + "; assumed:"]
    out += [f"    - {said}" for said in costs.assumptions(study, launches)]
    out += ["", f"  Commands, with port {PORT} for one that is free at the start:"]
    seen: set[str] = set()
    for launch in launches:
        out += _commands(launch, seen)
    return out


def _commands(launch: Launch, seen: set[str]) -> list[str]:
    """Every command of a launch; what an earlier one has run is not told again."""
    engine = registry.of(launch)
    out = ["", f"  {launch.name}"]
    told: list[tuple[str, list[str]]] = []
    if launch.container:
        told.append(("fetch the image", containers.pulling(launch.container)))
    for name in build.of(launch):
        recipe = build.recipe(name)
        if recipe.fetched or name != launch.artifact:
            told.append((f"{'fetch' if recipe.fetched else 'make'} {name}", [
                "python", f"lib/engines/recipes/{recipe.script}", "--scheme", str(recipe.scheme), "--out",
                f"artifacts/{name}"]))
    if isinstance(engine, GpuEngine):
        told += [(f"make {what}", argv) for what, argv in engine.commands(launch)]
    for what, argv in told:
        line = shlex.join(argv)
        if line not in seen:
            out.append(f"    {what}: {line}")
        seen.add(line)
    names = " ".join(sorted(engine.variables(launch, "")))
    return [*out, f"    serve (with {names}): {shlex.join(engine.runs(launch, PORT))}"]
