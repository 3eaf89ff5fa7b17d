"""Read what others published: claims, references, prices, model shapes and hardware in data/, each row checked at
the door.

Refuses a row with an unknown unit, a value that is no positive number, or no source, and names its file and line; a
model, GPU or precision without data is refused with what is missing and what exists.

Rule: these files hold facts and thresholds, never a verdict and never a number that can be computed from the others.
"""

import csv
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from lib.errors import ConfigError
from lib.paths import DATA

# metric -> the one unit it may carry
REFERENCE_UNITS = {
    "output_throughput": "tok/s",
    "output_throughput_per_gpu": "tok/s/GPU",
    "request_throughput": "req/s",
    "ttft_p99": "ms",
    "tpot": "ms",
}
PRICE_UNIT = "USD/GPU-hour"
ROW_UNITS = ("ttft_p95_ms", "output_tok_s", "max_concurrent")
SLA_UNITS = ("ttft_ms", "inter_token_latency_ms", "concurrent_requests")
ENGINES = ("vLLM", "TensorRT-LLM")  # as references.csv names them
ROW_ENGINES, ROW_PRECISIONS = ("vllm", "tensorrt_llm"), ("fp16", "fp8", "int4")  # as claims.yaml names them
MODEL_FIELDS = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "tied_embeddings")
GPU_FIELDS = ("memory_bytes", "memory_bytes_s", "flop_s", "link_bytes_s")
PRECISION_FIELDS = ("weight_bytes", "kv_bytes", "head_bytes", "flops")
THRESHOLDS = (
    "tolerance",
    "margin",
    "most",
    "side",
    "min_output_tokens",
    "max_output_tokens",
    "scheduler_slots",
    "min_load",
    "joined",
)
SIGNS = ("pages", "joins", "proof")  # what a record may show of an engine: lib/analyse/h100_features.py
RULES = (
    "row",
    "one_workload",
    "order",
    "ratio",
    "sla_ttft",
    "itl",
    "concurrency",
    "documented",
    "lora",
    "engine_choice",
    "time_to_serve",
)


def _rows(path: Path) -> list[tuple[str, dict[str, str]]]:
    """Rows of a CSV file, each with its place as `file:line`."""
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        return [(f"{path.name}:{reader.line_num}", row) for row in reader]


def _checked(place: str, row: dict[str, str], unit: str | None) -> dict[str, Any]:
    if None in row or None in row.values():
        raise ConfigError(
            f"{place}: the row does not have as many fields as the header; quote a field that holds a comma."
        )
    if unit is None:
        raise ConfigError(f"{place}: metric '{row.get('metric')}' is unknown; known are {', '.join(REFERENCE_UNITS)}.")
    if row["unit"] != unit:
        raise ConfigError(
            f"{place}: unit '{row['unit']}' is wrong for this row, which must be in {unit}; convert "
            "the value or mend the unit."
        )
    if not row["source"].strip():
        raise ConfigError(
            f"{place}: row '{row['id']}' has no source; a number without a source is not shown, so "
            "add one or drop the row."
        )
    try:
        value = float(row["value"])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(
            f"{place}: value '{row['value']}' is not a positive number; write it in {unit} without separators."
        )
    return {**row, "value": value}


def references(path: Path = DATA / "references.csv") -> list[dict[str, Any]]:
    """Return published points on performance: one dict a row, `value` in `unit`, lengths in tokens, `gpus` a count.

    Raises ConfigError with file and line for a wrong unit, an unusable value or a missing source.
    """
    checked = []
    for place, row in _rows(path):
        point = _checked(place, row, REFERENCE_UNITS.get(row.get("metric") or ""))
        if point["engine"] not in ENGINES:
            raise ConfigError(f"{place}: engine '{point['engine']}' is unknown; known are {', '.join(ENGINES)}.")
        if not re.match(r"TP[1-9]\d*( |$)", point["layout"]):
            raise ConfigError(
                f"{place}: layout '{point['layout']}' is none; write TP and the GPUs of a replica, as TP8."
            )
        checked.append(point | {name: _count(place, name, row[name]) for name in ("isl", "osl", "gpus")})
    return checked


def _count(place: str, name: str, text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ConfigError(f"{place}: {name} '{text}' is no whole number above zero; write the count in digits.")
    return int(text)


def prices(path: Path = DATA / "prices.csv") -> list[dict[str, Any]]:
    """Return published rents in USD per GPU-hour, one dict a row. Raises ConfigError with file and line."""
    return [_checked(place, row, PRICE_UNIT) for place, row in _rows(path)]


def price(price_id: str, path: Path = DATA / "prices.csv") -> dict[str, Any]:
    """One row of `prices` by its id; ConfigError with the ids that exist otherwise."""
    known = {row["id"]: row for row in prices(path)}
    return dict(_pick(known, price_id, "price", path))


def _pick(known: dict[str, Any], name: str, kind: str, path: Path) -> Any:
    if name not in known:
        raise ConfigError(
            f"no {kind} '{name}' in {path.name}; it has {', '.join(sorted(known))}. Add an entry with "
            "its source to use another."
        )
    return known[name]


class _Lines(yaml.SafeLoader):
    """A safe loader that keeps, in every mapping, the line on which it starts."""


def _mapping(loader: _Lines, node: yaml.MappingNode) -> dict[str, Any]:
    return {
        **{str(k): v for k, v in loader.construct_mapping(node, deep=True).items()},
        "_line": node.start_mark.line + 1,
    }


_Lines.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _without_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_lines(item) for key, item in value.items() if key != "_line"}
    return [_without_lines(item) for item in value] if isinstance(value, list) else value


def claims(path: Path = DATA / "claims.yaml") -> Mapping[str, Any]:
    """Return the claims file as plain data: article, sla, rows, thresholds, claims; all callers share it.

    Raises ConfigError with file and line for broken YAML; a row, limit or threshold without its number under the name
    that carries its unit; a row with an unknown engine or precision, or without source; a claim with an unknown rule,
    row, engine or sign; a stated value without a unit; a document without source.
    """
    return _claims(path, path.read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def _claims(path: Path, text: str) -> Mapping[str, Any]:
    data = _parsed(path, text, _Lines)
    for section in ("article", "sla", "rows", "thresholds", "claims"):
        if not data.get(section):
            raise ConfigError(f"{path.name}: section '{section}' is missing or empty; restore it.")
    rows = {row.get("id") for row in data["rows"]}
    for part, names in (("sla", SLA_UNITS), ("thresholds", THRESHOLDS)):
        for key in names:
            _positive(f"{path.name}:{data[part]['_line']}: {part}", data[part], key)
    if not data["sla"].get("where"):
        place = f"{path.name}:{data['sla']['_line']}"
        raise ConfigError(f"{place}: sla does not say where in the article it stands; add its source in `where`.")
    for row in data["rows"]:
        place = f"{path.name}:{row['_line']}: row '{row.get('id')}'"
        for key in ROW_UNITS:
            _positive(place, row, key)
        for key, known in (("engine", ROW_ENGINES), ("precision", ROW_PRECISIONS)):
            _known(place, row, key, known)
        if not row.get("where"):
            raise ConfigError(
                f"{place} does not say where in the article it stands; every row needs its source in `where`."
            )
    for claim in data["claims"]:
        place = f"{path.name}:{claim['_line']}: claim '{claim.get('id')}'"
        if claim.get("rule") not in RULES:
            raise ConfigError(
                f"{place} names the rule '{claim.get('rule')}', which does not exist; the rules are {', '.join(RULES)}."
            )
        if not claim.get("where"):
            raise ConfigError(
                f"{place} does not say where in the article it stands; every claim needs its source in `where`."
            )
        for key in ("row", "other"):
            if key in claim and claim[key] not in rows:
                raise ConfigError(
                    f"{place} refers to {key} '{claim[key]}', which is not in the table; it has "
                    f"{', '.join(sorted(rows))}."
                )
        if "value" in claim and claim.get("unit") != "ratio":
            raise ConfigError(
                f"{place} states a value in unit {claim.get('unit')!r}; the only unit a stated value "
                "may have here is 'ratio'."
            )
        if claim["rule"] == "time_to_serve" or claim.get("signs"):
            _known(place, claim, "engine", ROW_ENGINES)
        for sign in claim.get("signs", []):
            _known(f"{path.name}:{sign['_line']}: a sign of claim '{claim['id']}'", sign, "sign", SIGNS)
        for document in claim.get("documents", []):
            if not document.get("source") or document.get("side") not in ("for", "against"):
                raise ConfigError(
                    f"{path.name}:{document['_line']}: a document of claim '{claim['id']}' needs a "
                    "source and a side, for or against."
                )
    return dict(_without_lines(data))


def _positive(place: str, holder: dict[str, Any], key: str) -> None:
    value = holder.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{place} needs {key} as a positive number, got {value!r}; the name carries its unit.")


def _known(place: str, holder: dict[str, Any], key: str, known: tuple[str, ...]) -> None:
    if holder.get(key) not in known:
        raise ConfigError(f"{place} has {key} {holder.get(key)!r}; it must be one of {', '.join(known)}.")


def _parsed(path: Path, text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> dict[str, Any]:
    try:
        data = yaml.load(text, Loader=loader)
    except yaml.YAMLError as why:
        mark = getattr(why, "problem_mark", None)
        place = f"{path.name}:{mark.line + 1}" if mark else path.name
        raise ConfigError(f"{place}: this is no YAML ({getattr(why, 'problem', None) or why}); mend the line.") from why
    if not isinstance(data, dict):
        raise ConfigError(f"{path.name}: the file must hold a mapping at its top; restore it.")
    return data


@lru_cache(maxsize=8)
def _yaml(path: Path) -> dict[str, Any]:
    return _parsed(path, path.read_text(encoding="utf-8"))


def _section(path: Path, section: str | None, name: str, kind: str, fields: tuple[str, ...]) -> dict[str, Any]:
    data = _yaml(path)
    entry = dict(_pick(data if section is None else data[section], name, kind, path))
    for field in fields:
        if entry.get(field) is None:
            raise ConfigError(f"{path.name}: {kind} '{name}' has no {field}; add it, from the same source.")
    if not entry.get("source"):
        raise ConfigError(f"{path.name}: {kind} '{name}' has no source; add where its figures come from.")
    return entry


def model_entry(name: str, path: Path = DATA / "models.yaml") -> dict[str, Any]:
    """Shape of a model from data/models.yaml."""
    return _section(path, None, name, "model", MODEL_FIELDS)


def gpu_entry(name: str, path: Path = DATA / "hardware.yaml") -> dict[str, Any]:
    """Specification of a GPU from data/hardware.yaml: bytes, bytes/s, FLOP/s, W."""
    return _section(path, "gpus", name, "GPU", GPU_FIELDS)


def gpu_names(path: Path = DATA / "hardware.yaml") -> list[str]:
    """Names of the GPUs in data/hardware.yaml."""
    return list(_yaml(path)["gpus"])


def precision_entry(name: str, path: Path = DATA / "hardware.yaml") -> dict[str, Any]:
    """Bytes per weight, per KV element and per head weight of a number format, and which peak multiplies it."""
    return _section(path, "precisions", name, "precision", PRECISION_FIELDS)
