"""Start several servers of one model on this node, each on GPUs of its own, behind one port. Standard library only.

    python replicas.py --port 8000 --replicas 2 --gpus 4 --health /health -- SERVER --port {port} ...

Each connection goes to the replica with the fewest open ones and stays there; bytes pass unread. A GET is no exception:
it tells of one replica. The port opens once every replica answers its health check, and all end when one ends.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress

LOOK_S = 1.0


def free_port() -> int:
    """A loopback TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def visible() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; by number where it names none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [part for part in named.split(",") if part]


async def healthy(port: int, path: str) -> bool:
    """Whether a replica answers its health check with 200."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), 10)
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
    return line.split()[1:2] == [b"200"]


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on as they come, until one side ends."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


class Router:
    """Hands connections to replicas."""

    def __init__(self, ports: list[int]) -> None:
        self.open = dict.fromkeys(ports, 0)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        port = min(self.open, key=lambda p: self.open[p])
        self.open[port] += 1
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
            for one in (writer, back_writer):
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.gather(pour(reader, back_writer), pour(back_reader, writer))
        except OSError:
            writer.close()
        finally:
            self.open[port] -= 1


async def serve(told: argparse.Namespace) -> int:
    """Start, wait, route, end."""
    ports = [free_port() for _ in range(told.replicas)]
    gpus = visible() or [str(i) for i in range(told.replicas * told.gpus)]
    children = []
    try:
        for i, port in enumerate(ports):
            mine = ",".join(gpus[i * told.gpus : (i + 1) * told.gpus])
            argv = [word.replace("{port}", str(port)) for word in told.server]
            print(f"replica {i}: GPUs {mine}, port {port}: {argv}", flush=True)
            seen = os.environ | {"CUDA_VISIBLE_DEVICES": mine}
            children.append(await asyncio.create_subprocess_exec(*argv, env=seen))
        ends = [asyncio.create_task(child.wait()) for child in children]
        for port in ports:
            while not await healthy(port, told.health):
                if any(end.done() for end in ends):
                    return 1
                await asyncio.sleep(LOOK_S)
        async with await asyncio.start_server(Router(ports), "127.0.0.1", told.port):
            print(f"{told.replicas} replicas behind 127.0.0.1:{told.port}, fewest connections first", flush=True)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return 1
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                child.terminate()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--health", required=True)
    parser.add_argument("server", nargs="+")
    told = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(asyncio.run(serve(told)))


if __name__ == "__main__":
    main()
