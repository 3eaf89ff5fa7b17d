"""What follows from the article's table by arithmetic alone: no model, no machine, no assumption about engines.

Little's law for a closed loop: requests in flight = request rate x time in the system, so with N in flight, X output
tokens a second and answers of n tokens, N * n / X = TTFT + (n - 1) * ITL in the mean. Whoever states N, X and TTFT
has stated the mean ITL for every n.

Refuses answers below two tokens (no inter-token latency exists) and non-positive inputs. The p95 of TTFT stands in
for its mean, which is smaller: the implied ITL is therefore a lower limit, and the concurrency that a given ITL
allows an upper one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lib.errors import NoValue

OUTPUT_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens; from a ticker line to a memo


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise NoValue(f"{name} is {value}; Little's law needs it above zero.")


def implied_itl_ms(concurrency: float, output_tok_s: float, output_tokens: int, ttft_ms: float) -> float:
    """Mean inter-token latency in ms that N in flight, X tok/s, n tokens an answer and a TTFT in ms imply;
    negative if impossible.
    """
    _positive(concurrency=concurrency, output_tok_s=output_tok_s, ttft_ms=ttft_ms)
    if output_tokens < 2:
        raise NoValue(f"an answer of {output_tokens} token has no inter-token latency; ask from 2 tokens up.")
    return (1e3 * concurrency * output_tokens / output_tok_s - ttft_ms) / (output_tokens - 1)


def concurrency_at_itl(itl_ms: float, output_tok_s: float, output_tokens: int, ttft_ms: float) -> float:
    """Return requests in flight at which X tok/s, n tokens an answer, a TTFT and an ITL (both ms) are all true."""
    _positive(itl_ms=itl_ms, output_tok_s=output_tok_s, output_tokens=output_tokens, ttft_ms=ttft_ms)
    return output_tok_s * (ttft_ms + (output_tokens - 1) * itl_ms) / (1e3 * output_tokens)


def longest_answer_within(itl_ms: float, concurrency: float, output_tok_s: float, ttft_ms: float) -> float | None:
    """Output length in tokens up to which N in flight, X tok/s and the TTFT stay within an ITL (ms); None if at
    every length.

    N * n / X <= TTFT + (n - 1) * ITL holds for n <= (TTFT - ITL) / (N / X - ITL) where N / X > ITL, and for every n
    otherwise.
    """
    _positive(itl_ms=itl_ms, concurrency=concurrency, output_tok_s=output_tok_s, ttft_ms=ttft_ms)
    per_token_ms = 1e3 * concurrency / output_tok_s
    return None if per_token_ms <= itl_ms else max(0.0, (ttft_ms - itl_ms) / (per_token_ms - itl_ms))


def row_readings(
    row: Mapping[str, Any], sla: Mapping[str, Any], output_lengths: Iterable[int] = OUTPUT_LENGTHS
) -> list[dict[str, Any]]:
    """One dict per output length: implied ITL (ms) at the row's and at the SLA's concurrency, concurrency that the
    SLA's ITL allows.
    """
    limit, asked = sla["inter_token_latency_ms"], sla["concurrent_requests"]
    stated = (row["output_tok_s"], row["ttft_p95_ms"])
    readings = []
    for length in output_lengths:
        tok_s, ttft = stated
        itl = implied_itl_ms(row["max_concurrent"], tok_s, length, ttft)
        readings.append(
            {
                "row": row["id"],
                "output_tokens": length,
                "implied_itl_ms": itl,
                "meets_itl": itl < limit,
                "implied_itl_at_sla_load_ms": implied_itl_ms(asked, tok_s, length, ttft),
                "concurrency_at_itl_limit": concurrency_at_itl(limit, tok_s, length, ttft),
            }
        )
    return readings


def price_ratio(tok_s: float, other_tok_s: float, price: float = 1.0, other_price: float = 1.0) -> float:
    """Throughput per dollar of one over the other; on the same node the prices (USD per hour) cancel."""
    _positive(tok_s=tok_s, other_tok_s=other_tok_s, price=price, other_price=other_price)
    return (tok_s / price) / (other_tok_s / other_price)


def usd_per_million_tokens(node_usd_per_hour: float, output_tok_s: float) -> float:
    """USD per million output tokens: hourly price of the whole node over output tokens an hour."""
    _positive(node_usd_per_hour=node_usd_per_hour, output_tok_s=output_tok_s)
    return node_usd_per_hour / (output_tok_s * 3600) * 1e6


def true_if(row: Mapping[str, Any], sla: Mapping[str, Any]) -> list[dict[str, str | float | None]]:
    """Which readings of what the row leaves unstated would make it agree with the SLA's ITL, each with its number
    and unit.
    """
    limit, asked = sla["inter_token_latency_ms"], sla["concurrent_requests"]
    tok_s, ttft, stated = row["output_tok_s"], row["ttft_p95_ms"], row["max_concurrent"]
    return [
        {
            "reading": "throughput read at the stated maximum concurrency: answers no longer than",
            "unit": "tokens",
            "value": longest_answer_within(limit, stated, tok_s, ttft),
        },
        {
            "reading": "throughput read at the SLA's own load: answers no longer than",
            "unit": "tokens",
            "value": longest_answer_within(limit, asked, tok_s, ttft),
        },
        {
            "reading": "long answers: concurrency at which the throughput was read, at most",
            "unit": "requests",
            "value": tok_s * limit / 1e3,
        },
        {
            "reading": "long answers at the stated maximum concurrency: total throughput needed, at least",
            "unit": "tok/s",
            "value": 1e3 * stated / limit,
        },
    ]
