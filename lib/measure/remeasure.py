"""Put records aside so that the next `make report` takes them again. Nothing measured is deleted.

python -m lib.measure.remeasure cpu default vllm-bf16
"""

import sys

from lib import config, paths
from lib.errors import tell
from lib.measure.session import put_aside


def main() -> None:
    """Command line: profile, depth, and launches (all of the profile when none is named)."""
    profile, depth, *names = sys.argv[1:]
    study = config.load_study(profile, depth)
    for name in names or config.launch_names(profile, depth):
        launch = config.load_launch(profile, name)
        record, partial = paths.record(study.name, name), paths.partial(study.name, name)
        label = config.config_hash(study, launch)
        for path in (record, partial):
            if path.exists():
                put_aside(path, label)
                print(
                    f"{path.relative_to(paths.ROOT)} put aside in superseded/ beside it"
                )


if __name__ == "__main__":
    tell(main)
