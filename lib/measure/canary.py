"""Ten minutes before an expensive study: one launch at the promise's own load, and what the whole will cost.

    python -m lib.measure.canary PROFILE FILE

It looks the node over, measures the first launch of the study's order as depth `canary`, and lets the study begin only
if every request was answered whole. What it says is left in FILE. A canary that sang with the same config is not sent
again; where nothing is left to measure, or nothing can be measured, none is needed. Refused: a node with something
wrong, a launch that fails, a request that fails.
"""

import sys
from pathlib import Path

import numpy as np

from lib import config, depths, metrics, paths, records
from lib.config import Launch, Study
from lib.engines import budget, doctor, registry
from lib.errors import MeasureError, tell
from lib.measure import serve, session, takings


def send(profile: str) -> str:
    """Send a canary if the profile needs one.

    Returns
    -------
    one line for the user.

    Raises
    ------
    MeasureError : the study should not begin; says why.
    """
    study = config.load_study(profile, depths.CANARY)
    if not study.hardware.gpus:
        return "No GPU is paid for: no canary."
    launch = first(study)
    whole = config.load_study(profile)
    names = config.launch_names(profile)
    if all(session.settled(whole, config.load_launch(profile, name)) for name in names):
        return "Nothing is left to measure: no canary."
    if absent := registry.of(launch).absent(launch):
        return f"No canary: {absent}"
    target = paths.record(study.name, launch.name)
    if session.already_taken(target, config.config_hash(study, launch)):
        return f"The canary sang before: {sang(study, launch)}"
    wrong = [f for f in doctor.look(study, [launch]) if f.state == doctor.WRONG]
    if wrong:
        said = "; ".join(f"{f.what}: {f.found} ({f.way_out})" for f in wrong)
        raise MeasureError(f"The canary was not sent, because launches would fail here: {said}.")
    outcome = session.take(profile, depths.CANARY, launch.name)
    if outcome["status"] != "measured":
        raise MeasureError(f"The canary {launch.name} did not come back: {outcome['reason']}")
    return f"The canary sang: {sang(study, launch)}"


def first(study: Study) -> Launch:
    """Return the launch that runs first: of those that this computer can run, or of all where it can run none."""
    launches = [config.load_launch(study.profile, name) for name in config.run_order(study)]
    return next((one for one in launches if not registry.of(one).absent(one)), launches[0])


def sang(study: Study, launch: Launch) -> str:
    """Read the canary's record and say what it means for the study.

    Raises
    ------
    MeasureError : a request failed, or none was measured.
    """
    record = records.read(paths.record(study.name, launch.name))
    c = records.columns(record.table)
    asked = c["phase"] == "measured"
    good = asked & metrics.complete(c)
    if not asked.any() or good.sum() < asked.sum():
        raise MeasureError(
            f"The canary {launch.name}: {int(good.sum())} of {int(asked.sum())} requests were answered whole. See "
            f"{record.path} and the server's log beside it before the study is begun; remove the record to try again."
        )
    ready = [float(run["ready_seconds"]) for run in record.meta["runs"]]
    ttft, tpot = (float(np.median(of(c)[good])) * 1e3 for of in (metrics.ttft_s, metrics.tpot_s))
    whole = config.load_study(study.profile)
    hours = expected_s(whole, max(ready)) / 3600
    cost = f", ${budget.usd(whole, hours * 3600):.0f}" if whole.price else ""
    return (
        f"{launch.name} at {study.levels[0].id} answers {int(good.sum())} requests whole, first token {ttft:.0f} ms, "
        f"then one every {tpot:.1f} ms (medians), ready after {max(ready):.0f} s. At that start the study takes about "
        f"{hours:.1f} h of the node{cost}."
    )


def expected_s(study: Study, ready_s: float) -> float:
    """Seconds of the node that a study's launches take, each ready after `ready_s`."""
    runs = range(study.statistics.runs)
    each = sum(serve.expected_seconds(study, t) for run in runs for t in takings.order(study, run))
    return len(config.launch_names(study.profile)) * (each + len(runs) * ready_s)


def main() -> None:
    """Command line: profile and file."""
    said = send(sys.argv[1])
    print(said, flush=True)
    records.write_whole(Path(sys.argv[2]), f"{said}\n".encode())


if __name__ == "__main__":
    tell(main)
