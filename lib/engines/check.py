"""Check a whole profile before anything runs: the study and every launch, against what their engines can do.

python -m lib.engines.check cpu full
"""

import sys

from lib import config
from lib.engines import registry
from lib.errors import ConfigError, tell


def check(profile: str, depth: str) -> None:
    """Refuse a profile with any mistake in it.

    Raises
    ------
    ConfigError : all mistakes of all launches, so that one look at the config mends them.
    """
    study = config.load_study(profile, depth)
    wrong = []
    names = config.launch_names(profile)
    for name in names:
        try:
            launch = config.load_launch(profile, name)
            registry.of(launch).check(launch)
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


def main() -> None:
    """Command line: profile and depth."""
    profile, depth = sys.argv[1:3]
    check(profile, depth)


if __name__ == "__main__":
    tell(main)
