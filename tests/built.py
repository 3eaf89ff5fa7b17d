"""A small study with known numbers from records to tables, figures and facts, made as the Makefile makes them."""

import matplotlib.pyplot as plt
import synthetic

from lib import config
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


def judged(made, out):
    """The same study with quality records for two of its contenders; returns its facts and a folder as `build` leaves.

    llamacpp-q4_0 is its own reference, vllm-bf16 says the same next token 59 times in 100.
    """
    of = made_study()
    asked = config.Quality(texts=10, tokens=16, items=0, seed=1)
    noted = of.model.model_copy(update={"note": "unpacked from <4> bit"})
    of = of.model_copy(update={"quality": asked, "model": noted})
    said = {
        name: scored(name, engine, precision, stored, agree)
        for name, engine, precision, stored, agree in (
            ("vllm-bf16", "vllm-cpu", "bf16", "safetensors", 6),
            ("llamacpp-q4_0", "llama-cpp", "q4_0", "gguf-q4_0", 10),
        )
    }
    facts = tables.build(of, made[1] / "records", out / "tables", scored=said)
    for name in ("figures", "records"):
        (out / name).symlink_to(made[1] / name)
    return facts, out


def scored(launch, engine, precision, stored, agree):
    """A quality record of ten texts in which about `agree` of ten next tokens are the reference's."""
    texts = []
    for i in range(10):
        same = [int(k < agree + (i % 3 - 1) * (agree < 10)) for k in range(10)]
        loss = [0.0 if agree == 10 else 0.2] * 10
        texts.append({"logp": [-2.0] * 10, "logp_reference": [-1.9] * 10, "kl": loss, "agree": same})
    return {
        "schema": 1, "kind": "measured", "study": "synthetic", "launch": launch, "engine": engine,
        "precision": precision, "status": "measured", "reason": None, "chance": 0.25, "estimator": "known",
        "artifact": {"artifact": "a", "key": "k", "format": stored, "bytes": 150_000_000, "dtype": "float32"},
        "reference": {"artifact": "b"}, "itself": agree == 10, "texts": texts, "items": [],
        "when_utc": "2026-11-30T00:00:00Z", "source": f"records/synthetic/{launch}.quality.json#0",
    }  # fmt: skip
