"""Speak to a server on 127.0.0.1: a question, a short streamed completion, its metrics. Never used while measuring
requests: the load client is `lib.measure`'s.

Rule: what cannot be read is an OSError with its reason, so that callers need to know one kind of failure.
"""

import http.client
import json
import re
from typing import Any

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})? (\S+)")


def ask(
    port: int, method: str, path: str, key: str | None, body: dict[str, Any] | None = None, limit_s: float = 10.0
) -> tuple[int, str]:
    """Send one request.

    Returns
    -------
    HTTP status and text of the answer.

    Raises
    ------
    OSError : nobody listens, the time limit (s) passed, or the answer is not HTTP.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


def get_json(port: int, path: str, key: str, body: dict[str, Any] | None = None) -> Any:
    """Get (or, with a body, post to) a JSON endpoint.

    Raises
    ------
    OSError : as for `ask`, an HTTP error, or an answer that is not JSON.
    """
    status, text = ask(port, "POST" if body is not None else "GET", path, key, body)
    if status != 200:
        raise OSError(f"{path} answered {status}: {text[:200]}")
    try:
        return json.loads(text)
    except ValueError as error:
        raise OSError(f"{path} did not answer JSON: {text[:200]}") from error


def completion(port: int, path: str, key: str, body: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Stream one completion to its end.

    Returns
    -------
    events : chunks received; usage : the server's own count of tokens, as it sent it; text.

    Raises
    ------
    OSError : as for `ask`, an HTTP error, a broken event, or a stream without the server's token count.
    """
    status, text = ask(port, "POST", path, key, body, limit_s)
    if status != 200:
        raise OSError(f"{path} answered {status}: {text[:300]}")
    chunks = streamed(text, path)
    usages = [chunk["usage"] for chunk in chunks if isinstance(chunk.get("usage"), dict)]
    if not usages or not {"prompt_tokens", "completion_tokens"} <= set(usages[-1]):
        raise OSError(f"{path} streamed {len(chunks)} chunks without a token count: {text[:300]}")
    words = [choice.get("text") or "" for chunk in chunks for choice in chunk.get("choices") or ()]
    return {"events": len(chunks), "usage": usages[-1], "text": "".join(words)}


def streamed(text: str, path: str) -> list[dict[str, Any]]:
    """Read the events of a whole stream, its end marker left out.

    Raises
    ------
    OSError : an event that is no JSON object, or one that tells an error.
    """
    events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    try:
        chunks = [json.loads(event) for event in events if event != "[DONE]"]
    except ValueError as error:
        raise OSError(f"{path} streamed an event that is not JSON ({error}): {text[:300]}") from error
    if not all(isinstance(chunk, dict) for chunk in chunks):
        raise OSError(f"{path} streamed an event that is no JSON object: {text[:300]}")
    errors = [chunk["error"] for chunk in chunks if "error" in chunk]       # the status was sent before it went wrong
    if errors:
        raise OSError(f"{path} broke off: {errors[0]}"[:300])
    return chunks


def prometheus(text: str) -> dict[str, list[tuple[str, float]]]:
    r"""Read a Prometheus exposition: of every name its samples, as pairs of labels and value.

    >>> prometheus('# TYPE a gauge\na{engine="0"} 1\nb 3')
    {'a': [('engine="0"', 1.0)], 'b': [('', 3.0)]}
    """
    values: dict[str, list[tuple[str, float]]] = {}
    for line in text.splitlines():
        sample = SAMPLE.match(line)
        if sample:
            values.setdefault(sample[1], []).append((sample[2] or "", float(sample[3])))
    return values


def value(values: dict[str, list[tuple[str, float]]], wanted: str) -> float | None:
    """Return the sum of a metric over its samples, `mean NAME` their mean, `A / B` a ratio of two; with a label only
    those that carry it. None where one is missing, or the ratio's lower part is 0.

    >>> samples = {"a": [('engine="0",kind="x"', 1.0), ('engine="1",kind="y"', 2.5)]}
    >>> value(samples, "a"), value(samples, "mean a"), value(samples, 'a{kind="y"}'), value(samples, "b")
    (3.5, 1.75, 2.5, None)
    >>> value(samples, 'a{kind="x"} / a{kind="y"}')
    0.4
    """
    if " / " in wanted:
        upper, lower = (value(values, part) for part in wanted.split(" / "))
        return upper / lower if upper is not None and lower else None
    name, _, label = wanted.removeprefix("mean ").removesuffix("}").partition("{")
    found = [number for labels, number in values.get(name, ()) if not label or label in labels.split(",")]
    if not found:
        return None
    return sum(found) / (len(found) if wanted.startswith("mean ") else 1)
