"""The record keeps what it was given, appears only whole, and refuses what is not it."""

import os

import pyarrow as pa
import pytest

from lib import records
from lib.errors import RecordError

ROW = dict.fromkeys(records.REQUESTS.names) | {
    "run": 0,
    "level": "closed-1",
    "event_ns": [1, 2, 3],
    "status": "complete",
}
META = {"study": "cpu", "kind": "measured"}


def table(*rows):
    return pa.Table.from_pylist(list(rows), schema=records.REQUESTS)


def test_round_trip(tmp_path):
    path = tmp_path / "a.parquet"
    digest = records.write(path, table(ROW), META)
    record = records.read(path)
    assert record.table.to_pylist() == [ROW]
    assert record.meta == META | {"schema": records.SCHEMA}
    assert records.sha256(path) == digest


def test_nothing_half_under_the_final_name(tmp_path, monkeypatch):
    def dies(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(RecordError, match="No space left on device.*unchanged"):
        records.write(tmp_path / "a.parquet", table(ROW), META)
    assert list(tmp_path.iterdir()) == []


def test_damage_is_noticed(tmp_path):
    path = tmp_path / "a.parquet"
    records.write(path, table(ROW), META)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match="differs from its checksum"):
        records.read(path)


def test_other_files_schemas_and_columns_are_refused(tmp_path):
    (tmp_path / "b.parquet").write_bytes(b"hello")
    with pytest.raises(RecordError, match="not a record"):
        records.read(tmp_path / "b.parquet")
    with pytest.raises(RecordError, match="no record"):
        records.read(tmp_path / "c.parquet")
    with pytest.raises(RecordError, match="columns"):
        records.write(tmp_path / "d.parquet", pa.table({"x": [1]}), META)
    records.write(tmp_path / "e.parquet", table(ROW), META | {"schema": 99})
    with pytest.raises(RecordError, match="record schema 99"):
        records.read(tmp_path / "e.parquet")


def test_not_a_number_never_enters_the_metadata(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write(tmp_path / "a.parquet", table(ROW), META | {"x": float("nan")})


def test_rehearsals_and_other_studies_do_not_mix(tmp_path):
    a, b, c = (tmp_path / f"{x}.parquet" for x in "abc")
    records.write(a, table(ROW), META)
    records.write(b, table(ROW), META | {"kind": "rehearsal"})
    records.write(c, table(ROW), META | {"study": "h100"})
    with pytest.raises(RecordError, match="mix kinds"):
        records.read_study([a, b], "cpu")
    with pytest.raises(RecordError, match="belongs to study 'h100'"):
        records.read_study([a, c], "cpu")


def test_columns_keep_missing_missing(tmp_path):
    c = records.columns(table(ROW, ROW | {"event_ns": [], "sent_ns": 5}, ROW | {"event_ns": None}))
    assert c["event_offsets"].tolist() == [0, 3, 3, 3]
    assert c["first_event_ns"][0] == 1 and c["last_event_ns"][0] == 3
    assert c["first_event_ns"][1] != c["first_event_ns"][1]  # NaN
    assert c["sent_ns"][1] == 5 and c["sent_ns"][0] != c["sent_ns"][0]
