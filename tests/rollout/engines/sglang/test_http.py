"""The client against answers of all kinds."""

import asyncio

import pytest

from burnish.errors import UserError
from burnish.rollout.engine import EngineDied
from burnish.rollout.engines.http import HttpClient, Refused, check_address

from ....sglang_server import free_port


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "https://host:1", "http://", "http://host:1/v1"])
def test_no_address(url):
    with pytest.raises(UserError, match="not a server address"):
        check_address(url, "key")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 12}', {"a": 12}),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n3;x=y\r\n 7}\r\n0\r\n\r\n', {"a": 7}),
        (b"HTTP/1.0 200 OK\r\n\r\nCache flushed.", "Cache flushed."),
        (
            b'HTTP/1.1 400 Bad\r\nContent-Length: 31\r\n\r\n{"error": {"message": "too big"}',
            "answered /x with 400: .*too big",
        ),
        (b'HTTP/1.1 422 Bad\r\n\r\n{"detail": "no such field"}', "422: no such field"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", EngineDied),
        (b"", EngineDied),
        (b"SSH-2.0-OpenSSH\r\n", EngineDied),
    ],
)
def test_answers_of_all_kinds(answer, found):
    async def ask():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            return await client.post("/x", {}, 10)
        finally:
            server.close()

    if found is EngineDied:
        with pytest.raises(EngineDied):
            asyncio.run(ask())
    elif isinstance(found, str) and b" 4" in answer:
        with pytest.raises(Refused, match=found):
            asyncio.run(ask())
    else:
        assert asyncio.run(ask()) == found


def test_nobody_is_there_and_nobody_answers():
    async def silent():
        server = await asyncio.start_server(lambda reader, writer: asyncio.sleep(5), "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await client.get("/health", 0.1)

    with pytest.raises(EngineDied, match=r"did not answer in 0\.1 seconds"):
        asyncio.run(silent())
    with pytest.raises(EngineDied, match="Connect"):
        asyncio.run(HttpClient(f"http://127.0.0.1:{free_port()}").get("/health", 5))
