"""Check a whole profile before anything runs: the study and every launch, against what their engines can do.

python -m lib.engines.check cpu full [here]
"""

import sys

from lib import config, depths, paths
from lib.engines import registry
from lib.engines.rehearse import engine as rehearse
from lib.errors import ConfigError, tell


def check(profile: str, depth: str) -> None:
    """Refuse a profile with any mistake in it, or in one that is taken beside it.

    Raises
    ------
    ConfigError : all mistakes of all launches, so that one look at the config mends them.
    """
    study = config.load_study(profile, depth)
    wrong = []
    names = config.launch_names(profile)
    for other in config.beside(study):
        try:
            check(other.profile, depth)
        except ConfigError as error:
            wrong.append(str(error))
        if twice := sorted(set(names) & set(config.launch_names(other.profile))):
            wrong.append(
                f"Profiles {profile} and {other.profile} are told in one article and both have a launch "
                f"{', '.join(twice)}: give one of them another name."
            )
    for name in names:
        try:
            launch = config.load_launch(profile, name)
            rehearse.of(study, launch).check(launch)
        except ConfigError as error:
            wrong.append(str(error))
    if not names:
        wrong.append(f"Profile {profile!r} has no launch: put one YAML file per server beside its study.yaml.")
    strangers = sorted(set(study.noise_floor_pair or ()) - set(names))
    if strangers:
        wrong.append(
            f"noise_floor_pair names {', '.join(strangers)}, which no launch is. Launches: {', '.join(names)}."
        )
    if wrong:
        raise ConfigError(" ".join(wrong))


def check_here(profile: str, depth: str) -> None:
    """Refuse a profile of which this computer can run nothing, where there is no record to read either.

    Raises
    ------
    ConfigError : says what it lacks, and the ways out.
    """
    study = config.load_study(profile, depth)
    if list(paths.record(study.name, "any").parent.glob("*.parquet")):
        return
    launches = [config.load_launch(profile, name) for name in config.run_order(study)]
    reasons = [rehearse.of(study, launch).absent(launch) for launch in launches]
    if launches and all(reasons):
        raise ConfigError(
            f"Nothing of profile {profile} can run on this computer, and records/{study.name}/ holds no record. "
            f"{reasons[0]} `make plan PROFILE={profile}` prints every command and what it would cost; records taken "
            f"elsewhere go into records/{study.name}/ and are read from there."
            + (f" {said}" if (said := what_fits(profile)) else "")
        )


def for_this_gpu() -> dict[str, list[str]]:
    """Return the profiles that are for any one GPU, each with its launches that fit the GPU of this computer."""
    found = {}
    for profile in config.profiles():
        launches = [config.load_launch(profile, name) for name in config.launch_names(profile)]
        if launches and all(one.card for one in launches):
            found[profile] = [one.name for one in launches if not registry.of(one).absent(one)]
    return found


def what_fits(profile: str) -> str | None:
    """Say which profiles fit this computer's GPU, for one that any GPU may run; None for all others."""
    found = for_this_gpu()
    if profile not in found or not any(found.values()):
        return None
    fitting = "; ".join(f"{name} ({', '.join(launches)})" for name, launches in found.items() if launches)
    return f"What fits this computer's GPU: {fitting}. Each is a study of its own: make report PROFILE=..."


def main() -> None:
    """Command line: profile, depth, and `here` to be told if this computer can run none of it."""
    profile, depth, *rest = sys.argv[1:]
    check(profile, depth)
    if rest == ["here"]:
        check_here(profile, depth)
        if depth not in depths.IMPLIED and (said := what_fits(profile)):
            print(said, flush=True)


if __name__ == "__main__":
    tell(main)
