"""A small study with known numbers from records to tables, figures and facts, made as the Makefile makes them."""

import matplotlib.pyplot as plt
import synthetic

from lib.analyse import tables
from lib.show import figures

PROBE = {"host_probe": {"bandwidth_bytes_s": 60e9, "flop_s": {"float32": 900e9}, "seconds": 2.0}}
SERVERS = (
    synthetic.Server(extra=PROBE),
    synthetic.Server(name="vllm-bf16-again", seed=2, extra=PROBE),
    synthetic.Server(
        name="llamacpp-q4_0",
        engine="llama-cpp",
        precision="q4_0",
        ttft_ms=90.0,
        tpot_ms=6.0,
        failed=1,
        seed=4,
        extra=PROBE,
    ),
)


def made_study():
    return synthetic.study(levels=(1, 4), rates=(2.0,), seconds=7.0, repeats=2)


def build(folder):
    """Make the study in a folder; returns its facts."""
    of = synthetic.write_study(
        folder / "records", made_study(), SERVERS, absent={"vllm-fp8": "this computer <b>cannot</b> run it"}
    )
    facts = tables.build(of, folder / "records", folder / "tables")
    study = figures.Study(of, folder / "tables", folder / "records", folder / "figures")
    for name in figures.FIGURES:
        figures.draw(study, name)
        plt.close("all")
    return facts
