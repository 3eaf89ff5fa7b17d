"""The README's picture: the one tracked figure, with what it was drawn from beside it.

`python -m lib.show.readme cpu` copies a study's headline figure to figures/readme.svg and writes figures/readme.json:
the records' checksums and the hash of each launch's config. A test holds those hashes against today's config, so that a
picture of another study than the one described is noticed.
"""

import json
import sys

from lib import config, paths, records
from lib.errors import ConfigError, RecordError, tell
from lib.show import figures

PICTURE = paths.FIGURES / "readme.svg"
ORIGIN = paths.FIGURES / "readme.json"


def adopt(profile: str, depth: str = "default") -> None:
    """Make a study's headline figure the README's.

    Raises
    ------
    RecordError : a record that is not of today's config, or no figure drawn yet.
    ConfigError : unknown profile or depth; a rehearsal.
    """
    study = figures.load(profile, depth)
    if study.config.kind != "measured":
        raise ConfigError(f"Study {study.config.name!r} is a {study.config.kind}; the README shows measurements only.")
    taken: dict[str, dict[str, str]] = {}
    for launch in study.names:
        record = study.record(launch)
        wanted = config.config_hash(study.config, config.load_launch(profile, launch))
        if record.meta["config_hash"] != wanted:
            raise RecordError(
                f"{record.path.name} was taken with another config. Run `make report PROFILE={profile}` first."
            )
        ended = record.meta["ended_utc"]
        taken[launch] = {"sha256": records.sha256(record.path), "config_hash": wanted, "ended_utc": ended}
    drawn = study.figures / "headline.svg"
    if not drawn.exists():
        raise RecordError(f"{drawn} is not drawn yet. Run `make report PROFILE={profile}` first.")
    origin = {"study": study.config.name, "profile": profile, "depth": depth, "stamp": figures.stamp(study.facts)}
    records.write_whole(PICTURE, drawn.read_bytes())
    records.write_whole(ORIGIN, (json.dumps(origin | {"records": taken}, indent=1, sort_keys=True) + "\n").encode())


def main() -> None:
    """Command line: profile and depth."""
    adopt(*sys.argv[1:3])


if __name__ == "__main__":
    tell(main)
