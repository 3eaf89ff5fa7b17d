"""Print what a study will do before anything runs: every launch, level, repeat, expected duration and disk use.

python -m lib.measure.plan cpu full
"""

import sys

from lib import config, environments, paths
from lib.engines import build, prepare, registry
from lib.errors import tell
from lib.measure import costs, nodeplan, quality, takings
from lib.measure.session import already_taken
from lib.progress import clock

BYTES_PER_REQUEST = 3000  # a row with its token stamps, compressed; seen on the cpu profile
JOURNAL_BYTES_PER_TOKEN = 400  # raw bytes of one token event as engines send them, while a level is taken


def lines(profile: str, depth: str) -> list[str]:
    """The plan of a study and of those beside it, line by line.

    Raises
    ------
    ConfigError : as for loading the profile.
    """
    study = config.load_study(profile, depth)
    own = _lines(study)
    for other in config.beside(study):
        own += ["", f"Beside it, told in the same article: make report PROFILE={other.profile} takes it alone.",
                *_lines(other)]  # fmt: skip
    return own


def _lines(study: config.Study) -> list[str]:
    profile, statistics = study.profile, study.statistics
    width = max(16, *(len(level.id) for level in study.levels))
    out = [
        f"Study {study.name}: {study.title}",
        f"  SLA: p95 first token < {study.sla.ttft_p95_ms:g} ms, "
        f"p95 time per output token < {study.sla.tpot_p95_ms:g} ms, "
        f"{study.sla.sessions} sessions (stated {study.sla.stated})",
        f"  {statistics.runs} start(s) of each server, every level taken {statistics.repeats} time(s) per start, "
        "shuffled",
        "",
        f"  {'level':{width}} workload        issues for   per launch",
    ]
    for level in study.levels:
        times = statistics.runs * statistics.repeats
        out.append(f"  {level.id:{width}} {level.workload:15} {takings.seconds(level):7.1f} s   x {times}")
    if study.search:
        s = study.search
        out.append(
            f"  search: the capacity between {s.kind}-{s.lowest:g} and {s.kind}-{s.highest:g} on {s.workload}, "
            f"at most {s.at_most_seconds:g} s per launch"
        )
    out += ["", "  launch                    precision   environment   measuring      starts    state"]
    total, wanted = 0.0, []
    for name in config.run_order(study):
        launch = config.load_launch(profile, name)
        engine = registry.of(launch)
        engine.check(launch)
        measuring, starting = costs.measuring_s(study), costs.starting_s(study, launch)
        taken = already_taken(paths.record(study.name, name), config.config_hash(study, launch))
        absent = engine.unavailable(launch)
        state = "taken already" if taken else f"cannot run here: {absent}" if absent else "to be taken"
        if state == "to be taken":
            total += measuring + starting
            wanted.append(launch)
        out.append(
            f"  {name:25} {launch.precision:11} {launch.environment:13} {clock(measuring):12} "
            f"{clock(starting):>9}    {state}"
        )
    if study.quality:
        on, each = study.quality, quality.expected_s(study)
        out += ["", f"  quality: {on.texts} texts of {on.tokens} tokens and {on.items} questions, "
                    f"about {clock(each)} per launch that has not been scored"]
    to_build = [name for name in prepare.needed(profile, study.depth) if build.cached(name) is None]
    out += ["", f"  artifacts to build: {', '.join(to_build) or 'none'}"]
    out.append(
        f"  expected: about {clock(total)} of starting and measuring; installs and builds come on top, once"
        if wanted else "  expected: nothing is measured here: no launch is both missing and able to run"
    )
    out.append(
        f"  disk: records about {_record_mb(study):.0f} MB; "
        f"journals up to {_journal_mb(study):.0f} MB while a level is taken; "
        f"{_to_come_gb(wanted, to_build):.1f} GB of environments and artifacts are still to come"
    )
    return out + nodeplan.lines(study)


def _to_come_gb(wanted: list[config.Launch], to_build: list[str]) -> float:
    """Environments and artifacts that are not there yet and that the launches to be taken need."""
    if not wanted:
        return 0.0
    names = {launch.environment for launch in wanted if not (launch.container or launch.python)}
    names |= {build.recipe(name).environment for name in to_build}
    made = sum(environments.DISK_GB.get(name, 1.0) for name in names if not environments.python(name).exists())
    return made + sum(build.recipe(name).bytes for name in to_build) / 1e9


def _record_mb(study: config.Study) -> float:
    takings_ = study.statistics.runs * study.statistics.repeats * len(study.levels)
    return takings_ * 200 * BYTES_PER_REQUEST / 1e6


def _journal_mb(study: config.Study) -> float:
    tokens = max(study.workloads[level.workload].output_tokens.mean for level in study.levels)
    return 400 * tokens * JOURNAL_BYTES_PER_TOKEN / 1e6


def main() -> None:
    """Command line: profile and depth."""
    profile, depth = sys.argv[1:3]
    print("\n".join(lines(profile, depth)))


if __name__ == "__main__":
    tell(main)
