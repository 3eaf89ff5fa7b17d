"""The whole of a vLLM server asks for its key: an ASGI layer for its option --middleware. Standard library only.

vLLM itself asks for the key under /v1 and few other paths alone; /invocations, for one, answers completions to anybody
who can reach the port, and so does every other user of the computer on the loopback. It runs in the engine's own
environment, from a folder that holds nothing else. Refused: a request for any path without the key, with 401.
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
SAYS = b'{"error":"Unauthorized"}'


class Door:
    """Let pass who brings the key."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app
        self.wanted = b"Bearer " + os.environ["VLLM_API_KEY"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or hand the request on."""
        if scope["type"] not in ("http", "websocket") or self._knows(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(SAYS)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": SAYS})

    def _knows(self, scope: Scope) -> bool:
        brought = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(brought, self.wanted)
