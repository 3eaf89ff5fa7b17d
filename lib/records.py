"""The record: the border between measuring and reading. One Parquet file per launch, one row per request.

Nothing derived is stored: stamps, sizes, counts, statuses and hashes, never an answer's text. What holds for the
whole launch (config, machine, versions, clock, proof of what ran) is JSON in the file's own metadata; what was
sampled beside it (engine metrics, CPU, memory) is a second file of the same make, `<launch>.telemetry.parquet`.

Rules: a file appears under its final name only whole (written beside, synced, renamed); its checksum lies beside
it in `<file>.sha256`; a damaged file, another schema or a rehearsal where measurements are asked for is refused.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lib.errors import RecordError
from lib.whole import write_whole as write_whole

SCHEMA = 1
META_KEY = b"first-token-sla"

# Times are ns of one monotonic clock; null where the moment never came.
REQUESTS = pa.schema(
    [
        ("run", pa.int16()),  # which start of the server, from 0
        ("repeat", pa.int16()),  # which taking of the level within the run, from 0
        ("level", pa.string()),  # the level's id, e.g. closed-8
        ("index", pa.int32()),  # place in the level's request list
        ("phase", pa.string()),  # warmup | measured | cooldown: only measured ones enter statistics;
        # cooldown keeps the load up until the last measured one has ended
        ("request_id", pa.string()),
        ("prompt_hash", pa.string()),  # first 16 hex digits of the prompt's SHA-256
        ("planned_input_tokens", pa.int32()),
        ("planned_output_tokens", pa.int32()),
        ("due_ns", pa.int64()),  # when the schedule says it starts
        ("sent_ns", pa.int64()),  # its last byte was handed to the kernel
        ("connect_ns", pa.int64()),  # duration of opening the connection it went over
        ("first_byte_ns", pa.int64()),  # first byte of the response
        ("role_ns", pa.int64()),  # first event that carries only a role or an empty text
        ("visible_ns", pa.int64()),  # first token event that is not reasoning
        ("done_ns", pa.int64()),  # the stream's own end marker
        ("end_ns", pa.int64()),  # last byte of the response
        ("event_ns", pa.list_(pa.int64())),  # token events: events that carry visible output
        ("event_lag_ns_max", pa.int64()),  # largest difference between kernel and user-space stamp
        ("reads", pa.int32()),  # reads from the socket
        ("shared_reads", pa.int32()),  # token events that came in one read with the event before
        ("bytes", pa.int64()),  # bytes of the response as received
        ("input_tokens", pa.int32()),  # as the server counted them
        ("output_tokens", pa.int32()),
        ("output_tokens_source", pa.string()),  # server | tokenizer
        ("status", pa.string()),  # complete | truncated | failed | empty | wrong_length | unfinished
        ("cause", pa.string()),  # why it is not complete
        ("http_status", pa.int16()),
        ("finish_reason", pa.string()),
        ("text_hash", pa.string()),  # first 16 hex digits of the answer's SHA-256
        ("stamp_source", pa.string()),  # kernel | user
        ("connection", pa.int32()),  # which one it went over; in a closed loop every client keeps its own
        ("turn", pa.int16()),  # its place in its session, from 0; null where it is of none
        ("adapter", pa.string()),  # the LoRA adapter asked for; null where the model itself was
    ]
)

TELEMETRY = pa.schema(
    [
        ("run", pa.int16()),
        ("repeat", pa.int16()),
        ("level", pa.string()),
        ("t_ns", pa.int64()),
        ("name", pa.string()),  # common names: running, waiting, kv_cache_usage, engine_cpu_percent, ...
        ("value", pa.float64()),
    ]
)

STATUSES = ("complete", "truncated", "failed", "empty", "wrong_length", "unfinished")


@dataclass(frozen=True)
class Record:
    """A record as read: the rows and what holds for all of them."""

    path: Path
    table: pa.Table
    meta: dict[str, Any]


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encoded(table: pa.Table) -> bytes:
    """Encode rows of `REQUESTS` or `TELEMETRY` as the bytes of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=["level", "phase", "status", "stamp_source"])
    return bytes(sink.getvalue().to_pybytes())


def write(path: Path, table: pa.Table, meta: dict[str, Any]) -> str:
    """Write a record and its checksum.

    Parameters
    ----------
    path : where it goes; its folder is made.
    table : rows in the order and types of `REQUESTS` or `TELEMETRY`.
    meta : JSON values that hold for all rows; NaN and Infinity are refused.

    Returns
    -------
    Hex SHA-256 of the file.

    Raises
    ------
    RecordError : columns of another schema, or a disk that refuses.
    """
    expected = TELEMETRY if table.schema.names == TELEMETRY.names else REQUESTS
    if table.schema.names != expected.names:
        raise RecordError(f"{path}: columns {table.schema.names} are not those of schema {SCHEMA}: {expected.names}.")
    text = json.dumps({"schema": SCHEMA, **meta}, sort_keys=True, allow_nan=False)
    table = table.cast(expected).replace_schema_metadata({META_KEY: text.encode()})
    data = encoded(table)
    checksum_path(path).unlink(missing_ok=True)  # a kill in between leaves no checksum rather than a wrong one
    write_whole(path, data)
    digest = hashlib.sha256(data).hexdigest()
    write_whole(checksum_path(path), f"{digest}  {path.name}\n".encode())
    return digest


def checksum_path(path: Path) -> Path:
    """Where a record's checksum lies."""
    return path.with_name(path.name + ".sha256")


def read(path: Path) -> Record:
    """Read a record strictly.

    Raises
    ------
    RecordError : no such file, bytes that differ from the checksum, not Parquet, or another schema number.
    """
    if not path.exists():
        raise RecordError(f"There is no record {path.name} in {path.parent}. `make report` takes what is missing.")
    beside = checksum_path(path)
    if beside.exists() and beside.read_text().split()[:1] != [sha256(path)]:
        raise RecordError(
            f"{path} differs from its checksum in {beside.name}: it was damaged or edited after it was taken. "
            f"Restore it from a copy, or delete both files and run `make report` to measure this launch again."
        )
    try:
        table = pq.read_table(path)
        meta = json.loads((table.schema.metadata or {})[META_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise RecordError(f"{path} is not a record of this study: {error}. Delete it and measure again.") from error
    if meta.get("schema") != SCHEMA:
        raise RecordError(
            f"{path} has record schema {meta.get('schema')!r}, this code reads {SCHEMA}. "
            f"Read it with the version that wrote it (git {meta.get('git', {}).get('commit', 'unknown')})."
        )
    return Record(path, table, meta)


def read_json(path: Path, needed: set[str], remade_by: str) -> dict[str, Any] | None:
    """Read a record that is one JSON object with at least the keys `needed`; None without the file.

    Raises
    ------
    RecordError : the file is damaged; the text names the command that makes it anew.
    """
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        lacking = needed - set(found)
        if lacking:
            raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(f"{path} cannot be read ({error}). Delete it and run `{remade_by}`.") from error
    return found


def columns(table: pa.Table) -> dict[str, np.ndarray]:
    """Turn the rows of `REQUESTS` into numpy arrays, one per column.

    Numbers become float64 with NaN for null; strings object arrays with None. The nested token stamps become
    `event_ns` (int64, all stamps end to end) and `event_offsets` (int64, rows + 1), plus `first_event_ns` and
    `last_event_ns` (float64, NaN where a request has no token event).
    """
    arrays: dict[str, np.ndarray] = {}
    for name in table.schema.names:
        column = table[name].combine_chunks()
        if name == "event_ns":
            lists = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            stamps = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
            has = lengths > 0
            first, last = np.full(len(lengths), np.nan), np.full(len(lengths), np.nan)
            first[has], last[has] = stamps[offsets[:-1][has]], stamps[offsets[1:][has] - 1]
            arrays |= {"event_ns": stamps, "event_offsets": offsets, "first_event_ns": first, "last_event_ns": last}
        elif pa.types.is_string(column.type):
            arrays[name] = column.to_numpy(zero_copy_only=False)
        else:
            arrays[name] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return arrays


def read_study(paths: list[Path], study: str) -> list[Record]:
    """Read the records of one study and refuse what does not belong together.

    Raises
    ------
    RecordError : a record of another study, or a rehearsal among measurements.
    """
    records = [read(path) for path in paths]
    for record in records:
        if record.meta["study"] != study:
            raise RecordError(
                f"{record.path} belongs to study {record.meta['study']!r}, not {study!r}. "
                f"Move it to records/{record.meta['study']}/."
            )
    kinds = {record.meta["kind"] for record in records}
    if len(kinds) > 1:
        raise RecordError(
            f"Records of study {study!r} mix kinds {sorted(kinds)}; a rehearsal never joins measurements."
        )
    return records
