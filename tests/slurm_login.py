"""What a person's make would run on the login node, for a miniature study under ROOT: ROOT WHAT LAUNCH."""

import sys
from pathlib import Path

from lib import config
from lib.errors import tell
from lib.measure import slurm
from tests import mini_study

WORK = Path(__file__).with_name("slurm_work.py")


def main() -> None:
    root, what, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    mini_study.stand_in(root)
    slurm.LOOK_S, slurm.SETTLE_S = 0.2, 1.0
    target = root / f"{name}.target"
    command = (sys.executable, str(WORK), what, str(root), name, str(target))
    launch = None if name == slurm.BUILD else config.load_launch("mini", name)
    slurm.run(slurm.Work(config.load_study("mini"), launch, target, command))


if __name__ == "__main__":
    tell(main)
