"""Ask one request before a level, with a prompt of its own, and name what is wrong with the server or its address.

Rule: what would spoil a level is said before it starts, as one paragraph: wrong URL, wrong key, model not served,
context exceeded, no streaming, no usage, no output-length control. A probe's prompt is never a measured one.
"""

import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib.errors import MeasureError
from lib.measure.clientplan import Plan, Request, message
from lib.measure.formats import FORMATS
from lib.measure.http1 import Response, unframe
from lib.measure.wire import Answer, decode

PROBE_TOKENS = 5  # small, and no default of any server: a length that is honoured by chance is unlikely
PROBE_TEXT = "A lighthouse keeper counts the ships of the night and writes their number on a slate."


@dataclass(frozen=True)
class Probed:
    """What a probe found: the answer, and its times in seconds (connect, first token, all)."""

    answer: Answer
    connect_s: float
    first_token_s: float
    total_s: float


def probe(
    plan: Plan,
    path: str,
    body: Callable[[str, int], dict[str, Any]],
    wire: str,
    *,
    text: str = PROBE_TEXT,
    tokens: int = PROBE_TOKENS,
    timeout_s: float = 60.0,
) -> Probed:
    """Send one request to the plan's server and judge its answer.

    Parameters
    ----------
    plan : where the server is and which key it takes; its requests are not sent.
    body : (prompt, output tokens) -> JSON body, as the engine builds it.
    wire : key of formats.FORMATS.

    Raises
    ------
    MeasureError : one paragraph that names the fault and the way out.
    """
    request = Request(id="probe", path=path, body=json.dumps(body(text, tokens)).encode())
    where = f"{'https' if plan.tls else 'http'}://{plan.host}:{plan.port}{path}"
    began = time.monotonic_ns()
    try:
        reads, closed, connected = _exchange(plan, message(plan, request), timeout_s)
    except TimeoutError as error:
        raise MeasureError(
            f"{where} did not finish {tokens} tokens in {timeout_s:.0f} s. The server hangs or is still loading: look "
            "at its log, or raise the probe's time limit."
        ) from error
    except (OSError, ssl.SSLError) as error:
        raise MeasureError(
            f"{where} cannot be reached ({error}). Check host, port and TLS, and that the server is up."
        ) from error
    response = unframe(reads, closed)
    answer = decode(wire, response, transport="eof" if closed and not response.complete else "", keep_text=True)
    _refuse(where, response, answer, wire, tokens, str(body(text, tokens).get("model", "")))
    return Probed(
        answer,
        (connected - began) / 1e9,
        (answer.event_ns[0] - connected) / 1e9,
        (reads[-1][0] - connected) / 1e9,
    )


def _exchange(plan: Plan, data: bytes, timeout_s: float) -> tuple[list[tuple[int, bytes]], bool, int]:
    """Return one answer's reads, whether the server closed after them, and when the connection was up (ns)."""
    deadline = time.monotonic() + timeout_s
    sock: socket.socket = socket.create_connection((plan.host, plan.port), timeout=min(10.0, timeout_s))
    try:
        if plan.tls:
            sock = ssl.create_default_context(cafile=plan.tls_ca).wrap_socket(sock, server_hostname=plan.host)
        connected = time.monotonic_ns()
        sock.sendall(data)
        reads: list[tuple[int, bytes]] = []
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            try:
                data = sock.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return reads, True, connected
            reads.append((time.monotonic_ns(), data))
            answer = unframe(reads, closed=False)
            if answer.complete or answer.cause:
                return reads, False, connected
    finally:
        sock.close()


def _refuse(where: str, response: Response, answer: Answer, wire: str, tokens: int, model: str) -> None:
    """Raise the paragraph that fits, or return."""
    said = _said(response)
    status = response.status
    if status is None:
        why = response.cause or "it closed the connection without an answer"
        raise MeasureError(f"{where} does not answer in HTTP ({why}). Check the port, and whether it wants TLS.")
    if status in (401, 403):
        raise MeasureError(
            f"{where} refuses the key (HTTP {status}): {said}. Export the right key in the variable that the launch "
            "names, or start the server with the same one."
        )
    words = said.lower()
    if status in (400, 404, 422) and "model" in words and any(
        word in words for word in ("not exist", "not found", "no such", "unknown model", "not served", "unsupported")
    ):
        raise MeasureError(
            f"{where} does not serve the model {model!r} (HTTP {status}): {said}. Use a name that its /v1/models lists."
        )
    if status == 404 or status == 405:
        raise MeasureError(f"{where} does not exist on this server (HTTP {status}): {said}. Correct the path or port.")
    if status in (400, 413, 422) and any(word in words for word in ("context", "too long", "maximum", "max_model_len")):
        raise MeasureError(
            f"{where} says the request exceeds its context (HTTP {status}): {said}. Shorten the prompts or outputs, or "
            "serve the model with a longer context."
        )
    if status != 200:
        raise MeasureError(f"{where} answers HTTP {status}: {said}. Look at the server's log.")
    if "event-stream" not in response.headers.get("content-type", "") and not answer.event_ns:
        raise MeasureError(
            f"{where} does not stream: it sent {response.headers.get('content-type', 'no type')!r} in one piece. "
            "Without a stream there is no first token to time; use an endpoint that streams."
        )
    if answer.status != "complete":
        raise MeasureError(
            f"{where} gave an answer that is {answer.status} ({answer.cause}): {said}. If the server is right, the "
            f"wire format is not {wire!r}; known are {', '.join(FORMATS)}."
        )
    if answer.output_tokens is None and FORMATS[wire].counts:
        raise MeasureError(
            f"{where} counts no tokens: its stream has no usage, although the request asked for it. Without the "
            "server's count no throughput can be stated: update the server, or name a wire format that lacks usage."
        )
    if answer.output_tokens is not None and answer.output_tokens != tokens:
        raise MeasureError(
            f"{where} was asked for exactly {tokens} tokens and gave {answer.output_tokens} (finish reason "
            f"{answer.finish_reason}): output length is not under control, so contenders would do different work. Send "
            "the option by which this engine ignores the end token."
        )


def _said(response: Response) -> str:
    """Quote the server's own words, in short."""
    text = " ".join(response.body().decode("utf-8", "replace").split())
    return text[:300] if text else "no body"
