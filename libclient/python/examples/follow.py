"""A server of asyncio that follows a prefix: a trainer puts new versions, the server answers with the newest, and its loop never waits.

    python follow.py

It starts a broker of its own, checks each number, and ends by itself. Must never answer with an array of a version that is gone before.
"""

import asyncio
import os
import tempfile
from typing import Dict

import numpy

import fdbroker

VERSIONS, MODELS = 5, ["model/small", "model/large"]
#: Seconds that only a hang exceeds.
LIMIT_S = 60


class Server:
    """Knows the newest object of each name, and answers its sum to whoever sends the name."""

    def __init__(self, broker: fdbroker.Broker) -> None:
        self.broker = broker
        self.newest: Dict[str, fdbroker.Object] = {}

    async def follow(self) -> None:
        """Gets what is new. Any number of gets may wait, and a wait takes no thread."""
        with self.broker.watch("model/") as watch:
            async for event in watch:
                if event.kind == "lost":
                    names = [about.name for about in self.broker.list("model/")]
                else:
                    names = [event.name] if event.kind in ("sealed", "replaced") else []
                for name in names:
                    got = await self.broker.aget(name, timeout=LIMIT_S)
                    self.newest[name] = got
                    print(f"server: {name} is at version {got.version}", flush=True)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            got = self.newest.get(line.decode().strip())
            writer.write(b"none\n" if got is None else b"%d\n" % int(got.numpy().sum()))
            await writer.drain()
        writer.close()


async def ask(path: str, name: str, expected: int) -> None:
    """A client, which asks until the answer is what it waits for."""
    reader, writer = await asyncio.open_unix_connection(path)
    answer = b""
    while answer != b"%d\n" % expected:
        writer.write(name.encode() + b"\n")
        answer = await reader.readline()
        await asyncio.sleep(0.002)
    writer.close()


async def main() -> None:
    with fdbroker.private_broker(max_fds=64) as broker, tempfile.TemporaryDirectory() as folder:
        server, path = Server(fdbroker.connect(broker.socket)), os.path.join(folder, "server.sock")
        following = asyncio.ensure_future(server.follow())
        listening = await asyncio.start_unix_server(server.answer, path)
        for version in range(1, VERSIONS + 1):
            for size, name in enumerate(MODELS, 1):
                await broker.aput(name, numpy.full(1000 * size, version), replace=True)
            for size, name in enumerate(MODELS, 1):
                await asyncio.wait_for(ask(path, name, 1000 * size * version), LIMIT_S)
        # A cancel ends a wait at once.
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        listening.close()
        server.newest.clear()
        server.broker.close()
    print(f"a server followed {VERSIONS} versions of {len(MODELS)} models: every number is right")


if __name__ == "__main__":
    asyncio.run(main())
