"""Rules for the SLA, the features and the recommendation, and the list of all rules by name.

Pure functions: a case in, (verdict, reason, evidence) out. The article's own arithmetic and the bounds come before
predictions. Refuses nothing: a claim that no number at hand touches is "not testable here", until a record does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lib.analyse import arithmetic
from lib.analyse.cases import Case, Finding, by_share, factor, measured_verdict
from lib.analyse.evidence import CONSISTENT, CONTRADICTED, DEPENDS, REPRODUCED, UNTESTABLE, Evidence
from lib.analyse.rules_table import rule_one_workload, rule_order, rule_ratio, rule_row


def rule_sla_ttft(case: Case) -> Finding:
    """Meeting or missing the TTFT limit."""
    limit, key, meets = case.sla["ttft_ms"], "ttft_p95_ms", case.claim["meets"]
    if found := case.measured(key):
        return measured_verdict(
            f"measured {found[key]:.0f} ms against {limit:.0f} ms.",
            (found.get(f"{key}_high", found[key]) < limit) == meets,
            found[key],
            "ms",
        )
    readings = case.readings()
    return by_share(
        case,
        sum((r[key] < limit) == meets for r in readings),
        len(readings),
        f"{'meet' if meets else 'miss'} {limit:.0f} ms",
    )


def rule_itl(case: Case) -> Finding:
    """Inter-token latency at the SLA's load and at the row's own, by Little's law on the row's own numbers first."""
    limit, load, row = case.sla["inter_token_latency_ms"], case.limits["min_load"], case.row
    if found := case.measured("tpot_p95_ms", least=load):
        value = found.get("tpot_p95_ms_high", found["tpot_p95_ms"])
        at = f" at {found['load']:g} requests" if "load" in found else ""
        return measured_verdict(f"measured p95 of {value:.1f} ms per token{at}.", value < limit, value, "ms")
    lengths = [
        n
        for n in arithmetic.OUTPUT_LENGTHS
        if case.limits["min_output_tokens"] <= n <= case.limits["max_output_tokens"]
    ]
    implied = {
        n_req: [arithmetic.implied_itl_ms(n_req, row["output_tok_s"], n, row["ttft_p95_ms"]) for n in lengths]
        for n_req in (load, row["max_concurrent"])
    }
    evidence = [
        Evidence(
            "assumed",
            "for" if max(values) < limit else "against",
            f"Little's law on the row: {min(values):.1f} to {max(values):.1f} ms at {n_req:g} requests",
            f"article, table; {min(lengths)} to {max(lengths)} tokens an answer assumed",
            max(values),
            "ms",
        )
        for n_req, values in implied.items()
    ]
    readings = case.readings()
    agreeing = sum(r["tpot_p95_ms"] < limit for r in readings)
    if readings:
        evidence.append(
            Evidence(
                "predicted",
                "for" if agreeing >= case.limits["side"] * len(readings) else "against",
                f"{agreeing} of {len(readings)} readings stay below {limit:g} ms at the stated load",
                case.world.predicted_by,
            )
        )
    if min(implied[load]) >= limit:
        # The row does not say at which load its throughput was read, so it contradicts nothing by itself.
        most = max(arithmetic.concurrency_at_itl(limit, row["output_tok_s"], n, row["ttft_p95_ms"]) for n in lengths)
        return (
            DEPENDS,
            f"it holds only if {row['output_tok_s']:,.0f} tok/s was read below {most:.0f} requests at once; read at "
            f"{load:g}, it implies at least {min(implied[load]):.1f} ms.",
            evidence,
        )
    if max(implied[row["max_concurrent"]]) < limit:
        return (
            CONSISTENT,
            f"its own throughput implies at most {max(implied[row['max_concurrent']]):.1f} ms at its stated maximum.",
            evidence,
        )
    return (
        DEPENDS,
        (
            f"its own throughput implies {max(implied[load]):.1f} ms at {load:g} requests and "
            f"{max(implied[row['max_concurrent']]):.1f} ms at "
            f"{row['max_concurrent']}: it depends on where the throughput was read."
        ),
        evidence,
    )


def rule_concurrency(case: Case) -> Finding:
    """Judge the maximum of concurrent requests, whatever it means: memory, scheduler slots, or the SLA."""
    row, stated, tolerance = case.row, case.row["max_concurrent"], case.limits["tolerance"]

    def agrees(capacity: float) -> bool:
        return capacity >= stated if row["max_is_lower_bound"] else factor(max(capacity, 1e-9), stated) <= tolerance

    if found := case.measured("capacity", least=0):
        return measured_verdict(
            f"measured capacity under the SLA {found['capacity']:.0f}.",
            agrees(found["capacity"]),
            found["capacity"],
            "requests",
        )
    sessions = [b["sessions"] for b in case.world.bounds if b["row"] == row["id"]]
    evidence = []
    if sessions:
        evidence.append(
            Evidence(
                "bound",
                "against" if stated > max(sessions) else "for",
                f"memory holds up to {max(sessions)} sessions",
                "physics.py",
                max(sessions),
                "sessions",
            )
        )
        if stated > max(sessions):
            return CONTRADICTED, f"memory holds at most {max(sessions)} sessions of any workload.", evidence
    evidence.append(
        Evidence(
            "assumed",
            "for" if stated <= case.limits["scheduler_slots"] else "against",
            "slots that the engine's scheduler has by default",
            "engine defaults",
            case.limits["scheduler_slots"],
            "sequences",
        )
    )
    readings = case.readings()
    verdict, reason, more = by_share(
        case, sum(agrees(r["capacity"]) for r in readings), len(readings), "have that capacity under the SLA"
    )
    return verdict, reason, evidence + more


def _documents(case: Case) -> list[Evidence]:
    return [Evidence("published", d["side"], d["what"], d["source"]) for d in case.claim.get("documents", [])]


def rule_documented(case: Case) -> Finding:
    """Judge a property by its signs in records, each of them; where some were not looked for, by documentation."""
    signs = case.world.measured.get("documented", {}).get(case.claim["id"], {}).get("signs", ())
    evidence = _documents(case) + [
        Evidence("measured", "for" if sign["seen"] else "against", sign["what"], sign["source"])
        for sign in signs
        if sign["seen"] is not None
    ]
    seen = [sign["seen"] for sign in signs]
    if False in seen:
        missing = "; ".join(sign["what"] for sign in signs if sign["seen"] is False)
        return CONTRADICTED, f"looked for in records of this study and not seen: {missing}.", evidence
    if seen and None not in seen:
        return REPRODUCED, f"records of this study show {'it' if len(seen) == 1 else 'each of its signs'}.", evidence
    documents = [piece.side for piece in evidence if piece.kind == "published"]
    verdict = {frozenset({"for"}): CONSISTENT, frozenset({"against"}): CONTRADICTED, frozenset(): UNTESTABLE}.get(
        frozenset(documents), DEPENDS
    )
    looked = f"{seen.count(True)} of {len(seen)} signs" if seen else "no record of this study looks for it yet"
    reason = f"{documents.count('for')} documents for it, {documents.count('against')} against; {looked}"
    return verdict, f"{reason}{' seen in records of this study, the others not looked for' if seen else ''}.", evidence


def rule_lora(case: Case) -> Finding:
    """Adapter switching: only a measured switch of both engines decides, and only where their intervals part."""
    found, own = case.world.measured.get("lora", {}), case.claim["engine"]
    other = next((engine for engine in found if engine not in (own, "engines", "sources")), None)
    if own not in found or other is None:
        return UNTESTABLE, "no record of this study times an adapter switch in both engines yet.", _documents(case)
    (low, high), (other_low, other_high) = (_interval(found[engine]) for engine in (own, other))
    says = f"a switch takes {found[own]['value']:.0f} ms in {own} and {found[other]['value']:.0f} ms in {other}"
    if low <= other_high and other_low <= high:
        return DEPENDS, f"{says}: not distinguishable.", _documents(case)
    verdict, reason, more = measured_verdict(f"{says}.", high < other_low)
    return verdict, reason, _documents(case) + more


def _interval(number: Mapping[str, Any]) -> tuple[float, float]:
    """Limits of a number, its value where it has none."""
    low, high = (number["value"] if number.get(end) is None else number[end] for end in ("low", "high"))
    return low, high


def rule_engine_choice(case: Case) -> Finding:
    """One engine faster than the other at the row's precision; other precisions stand in the reason, beside it."""
    kind = case.row["precision"]
    if found := case.world.measured.get("engine_effect", {}).get(kind):
        says = f"measured {found['low']:.2f} to {found['high']:.2f} times at {kind}"
        if found["low"] <= 1 <= found["high"]:
            return DEPENDS, f"{says}: not distinguishable.", []
        return measured_verdict(f"{says}.", found["low"] > 1)
    effects = case.world.engine_effects.get(kind, ())
    verdict, reason, evidence = by_share(
        case, sum(e > 1 for e in effects), len(effects), f"make it faster than the other engine at {kind}"
    )
    if effects:
        reason = f"{reason} The effect spans {min(effects):.2f} to {max(effects):.2f}."
    for other, values in case.world.engine_effects.items():
        if other != kind:
            reason = f"{reason} At {other}, of which the claim does not speak, {sum(v > 1 for v in values)} of "
            reason = f"{reason}{len(values)} do ({min(values):.2f} to {max(values):.2f})."
    peers = [
        Evidence("published", "for" if p["value"] > 1 else "against", p["what"], p["source"], p["value"], "ratio")
        for p in case.world.ratios
        if p["effect"] == "engine" and p["precision"] == kind
    ]
    return verdict, reason, evidence + peers


def rule_time_to_serve(case: Case) -> Finding:
    """Developer velocity as far as a study can time it: from stored weights to the first answer, at equal precision."""
    own, tolerance = case.claim["engine"], case.limits["tolerance"]
    seconds = case.world.measured.get("start", {}).get("seconds", {})
    both = [of for of in seconds.values() if own in of and len(of) > 1]
    if not both:
        why = "no record of this study times both engines from stored weights to the first answer yet"
        return UNTESTABLE, f"{why}; the rest of developer velocity no number here measures.", _documents(case)
    ratios = [min(s for engine, s in of.items() if engine != own) / of[own] for of in both]
    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
    says = f"the other engine takes {span} times as long from stored weights to an answer"
    if min(ratios) > tolerance or max(ratios) < 1 / tolerance:
        says = f"{says}; that is all of developer velocity that is timed here."
        verdict, reason, more = measured_verdict(says, min(ratios) > tolerance, ratios[0], "ratio")
        return verdict, reason, _documents(case) + more
    return DEPENDS, f"{says}: within {tolerance:g} times, or not the same at every precision.", _documents(case)


RULES: dict[str, Callable[[Case], Finding]] = {
    "row": rule_row,
    "one_workload": rule_one_workload,
    "order": rule_order,
    "ratio": rule_ratio,
    "sla_ttft": rule_sla_ttft,
    "itl": rule_itl,
    "concurrency": rule_concurrency,
    "documented": rule_documented,
    "lora": rule_lora,
    "engine_choice": rule_engine_choice,
    "time_to_serve": rule_time_to_serve,
}
