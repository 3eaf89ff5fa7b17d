"""What must hold after a death, and what must hold of the record in the end: each check says what is wrong."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lib import records
from lib.measure import exchange
from lib.measure import journal as jn
from lib.measure.clientplan import Plan
from tests.torture.studies import LAUNCH, NAME, NOTEBOOK

WIRE = {"stand-in": "openai-completions", "llama-cpp": "llama-cpp", "vllm-cpu": "openai-completions"}
ASKED = ["request_id", "prompt_hash", "planned_input_tokens", "planned_output_tokens"]
ANSWERED = [*ASKED, "input_tokens", "output_tokens", "status", "phase"]

Done = dict[str, list[tuple[str, list[int]]]]  # taking -> (request id, token stamps)


def files(root: Path) -> Iterator[str]:
    """Files under their final names that are not whole."""
    for path in sorted((root / "records").rglob("*")):
        if not path.is_file() or path.name.endswith(".tmp"):
            continue
        try:
            if path.suffix == ".parquet":
                beside = records.checksum_path(path)
                if beside.exists():
                    records.read(path)
                pq.read_table(path)
            elif path.suffix == ".json":
                json.loads(path.read_text())
        except Exception as error:
            yield f"{path.relative_to(root)} is not whole: {error}"
    for path in (root / NOTEBOOK, root / "records" / NAME / f"{LAUNCH}.outcome.json"):
        if path.exists():
            try:
                json.loads(path.read_text())
            except ValueError as error:
                yield f"{path.relative_to(root)} is not whole: {error}"


def journals(root: Path, kind: str) -> Iterator[str]:
    """Finished requests in the journals of an interrupted level that cannot be read back whole."""
    for file in (root / "records" / NAME).rglob("*.plan.json"):
        plan = Plan.read(file)
        journal = Path(plan.journal)
        if not journal.exists() or journal.stat().st_size < jn.PAGE:
            continue
        reader = jn.Reader(journal)
        ended = {i for what, i, at in reader.scan() if what == jn.END and not bytes(reader.payload(at))}
        rows = {row["index"]: row["status"] for row in exchange.rows([plan], WIRE.get(kind, WIRE["stand-in"]))}
        if lost := sorted(i for i in ended if rows.get(i) != "complete"):
            yield f"{journal.name}: of {len(ended)} finished requests {len(lost)} cannot be read, first {lost[0]}"


def finished(root: Path) -> Done:
    """Takings that are finished and on disk, with what they hold."""
    partial, found = root / "records" / NAME / f"{LAUNCH}.partial", {}
    for note in partial.glob("r*-p*-*.json"):
        if note.name.endswith((".plan.json", ".interrupted.json", ".retaken.json")):
            continue
        table = pq.read_table(note.with_suffix(".parquet"))
        found[note.stem] = list(zip(table["request_id"].to_pylist(), table["event_ns"].to_pylist(), strict=True))
    return found


def summary(root: Path) -> dict[str, Any]:
    """What two runs of one study must agree on: all of an open level's measured requests; of a closed one, the list
    that its clients go down, however far they get.
    """
    record = records.read(root / "records" / NAME / f"{LAUNCH}.parquet")
    rows = record.table.to_pylist()
    levels: dict[str, Any] = {}
    for taking in record.meta["takings"]:
        key = f"r{taking['run']}-p{taking['repeat']}-{taking['level']}"
        mine = [r for r in rows if all(r[name] == taking[name] for name in ("run", "repeat", "level"))]
        levels[key] = {"open": taking["concurrency"] is None, "rows": [[r[name] for name in ANSWERED] for r in mine]}
    ids = Counter((r["run"], r["repeat"], r["level"], r["request_id"]) for r in rows)
    return {
        "config_hash": record.meta["config_hash"],
        "incomplete": record.meta["incomplete"],
        "proven": bool(record.meta["proof"]) and all(row["ok"] for row in record.meta["proof"]),
        "doubled": [key for key, n in ids.items() if n > 1],
        "levels": levels,
    }


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    """What a record says otherwise than an undisturbed run's."""
    for name in ("config_hash", "incomplete", "proven", "doubled"):
        if found[name] != wanted[name]:
            yield f"{name} is {found[name]!r}, undisturbed it is {wanted[name]!r}"
    if set(found["levels"]) != set(wanted["levels"]):
        yield f"takings {sorted(found['levels'])} are not those of the undisturbed run"
        return
    for key, level in wanted["levels"].items():
        mine = found["levels"][key]["rows"]
        measured = [row[:-1] for row in mine if row[-1] == "measured"]
        if level["open"]:
            if measured != [row[:-1] for row in level["rows"] if row[-1] == "measured"]:
                yield f"{key}: its measured requests are not those of the undisturbed run"
            continue
        planned = {row[0]: row[:4] for row in level["rows"]}
        if any(planned.get(row[0], row[:4]) != row[:4] for row in mine):
            yield f"{key}: requests of one id differ from the undisturbed run's"
        if sorted(int(row[0].rsplit("-", 1)[1]) for row in mine) != list(range(len(mine))):
            yield f"{key}: a request of its list is missing"
        if not measured or {row[-1] for row in measured} != {"complete"}:
            yield f"{key}: measured requests ended as {Counter(row[-1] for row in measured)}"


def kept(root: Path, done: Done) -> Iterator[str]:
    """Takings that were finished before a death and are not in the record as they were."""
    table = records.read(root / "records" / NAME / f"{LAUNCH}.parquet").table
    rows = table.select(["run", "repeat", "level", "request_id", "event_ns"]).to_pylist()
    now: Done = {}
    for row in rows:
        key = f"r{row['run']}-p{row['repeat']}-{row['level']}"
        now.setdefault(key, []).append((row["request_id"], row["event_ns"]))
    for key, before in done.items():
        if now.get(key) != before:
            yield f"{key} was finished and was taken again, or lost"
