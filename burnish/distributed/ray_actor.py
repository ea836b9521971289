"""HostActor: the Ray actor that runs a worker's host. Calls are its methods; batches come from Ray's object store.

The actor is an asyncio one, so that it answers while the host computes. Ray may then deliver calls in another order
(an argument was still on its way), so calls are numbered and the host gets them as they were sent.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import pickle
import platform
import sys
import threading
from queue import SimpleQueue
from typing import Any

from burnish.distributed.channel import Call, Result, serialize
from burnish.distributed.host import CLOSE, Host
from burnish.distributed.rendezvous import reserve_address_at
from burnish.network import prefer_loopback

COMPARED = ("burnish", "torch")  # packages whose versions must be equal on all machines


def versions() -> dict[str, str]:
    """What must be equal on all machines of a run."""
    found = {name: importlib.metadata.version(name) for name in COMPARED}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **found}


class ActorChannel:
    """The host's end: what Channel is for a socket. All but `send` and `receive` runs on the actor's event loop."""

    def __init__(self, host_address: str | None) -> None:
        self.host_address = host_address
        self._calls: SimpleQueue[Call] = SimpleQueue()  # in order
        self._early: dict[int, Call] = {}  # by number, until those before them have come
        self._next_number = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}  # by id of the call
        self._streamed: list[bytes] = []  # results that no call waits for
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def receive(self) -> Call:
        return self._calls.get()

    def send(self, message: Result) -> None:
        packed = serialize(message)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._deliver, message.id, packed)

    def reserve_address(self) -> str:
        assert self.host_address is not None
        return reserve_address_at(self.host_address)

    async def call(self, number: int, message: bytes, shared: Any) -> bytes | None:
        """Run a call; the result of one that has a single result."""
        self._loop = asyncio.get_running_loop()
        call: Call = pickle.loads(message)
        call = Call(call.id, call.method, call.args, call.kwargs, call.num_results, shared)
        waits = call.num_results is None and call.method != CLOSE
        if waits:
            self._waiting[call.id] = self._loop.create_future()
        self._early[number] = call
        while self._next_number in self._early:
            self._calls.put(self._early.pop(self._next_number))
            self._next_number += 1
        return await self._waiting[call.id] if waits else None

    async def streamed(self) -> list[bytes]:
        """Results of calls with several, as soon as there is one."""
        self._loop = asyncio.get_running_loop()
        await self._arrived.wait()
        self._arrived.clear()
        results, self._streamed = self._streamed, []
        return results

    def _deliver(self, id: int, message: bytes) -> None:
        future = self._waiting.pop(id, None)
        if future is not None:
            future.set_result(message)
        else:
            self._streamed.append(message)
            self._arrived.set()


class HostActor:
    """One worker."""

    def __init__(self, several_machines: bool) -> None:
        if not several_machines:
            prefer_loopback()
        self._several = several_machines
        self._channel: ActorChannel | None = None
        self._ended = threading.Event()

    async def machine(self) -> tuple[str, str]:
        """The address and the id of this actor's node. Ray's API is at hand in an actor's process."""
        ray = sys.modules["ray"]
        return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()

    async def start(self, address: str) -> dict[str, str]:
        """Begin; returns this machine's versions."""
        self._channel = ActorChannel(address if self._several else None)
        threading.Thread(target=self._run, args=(self._channel,), daemon=True, name="burnish-host").start()
        return versions()

    def _run(self, channel: ActorChannel) -> None:
        try:
            Host(channel).run()
        finally:
            self._ended.set()

    async def call(self, number: int, message: bytes, shared: Any = None) -> bytes | None:
        assert self._channel is not None
        return await self._channel.call(number, message, shared)

    async def streamed(self) -> list[bytes]:
        assert self._channel is not None
        return await self._channel.streamed()

    async def ended(self) -> None:
        """Returns when the host has closed what it holds."""
        await asyncio.get_running_loop().run_in_executor(None, self._ended.wait)
