"""An MCP server for tests, written with the library: `python mcp_server.py stdio NAME` or `http NAME PORT`."""

from __future__ import annotations

import os
import sys
import time


def serve(kind: str, name: str, port: int = 0) -> None:
    try:
        from mcp.server import MCPServer  # 2.x
    except ImportError:
        from mcp.server.fastmcp import FastMCP as MCPServer  # 1.x
    server = MCPServer(name)
    output = os.dup(1)  # mcp 2.3 protects descriptor 1

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return f"{a + b} from {name}"

    @server.tool()
    def where(what: str) -> str:
        """Break in one of several ways."""
        if what == "die":
            sys.stderr.write("out of ideas\n")
            sys.stderr.flush()
            os._exit(3)
        if what == "hang":
            time.sleep(1000)
        if what == "raise":
            raise ValueError("wrong")
        if what == "flood":
            os.write(output, b"x" * (9 * 2**20) if kind == "stdio" else b"")
        if what == "large":
            return "x" * (9 * 2**20)
        print("noise that is not JSON", file=sys.stderr if kind == "http" else sys.stdout, flush=True)
        return f"{os.environ.get('MCP_TEST', '')} {os.getpid()}"

    if name == "many":
        server.tool(name="only_here")(add)
    if kind == "stdio":
        server.run("stdio")
        return
    try:
        server.run("streamable-http", port=port)
    except TypeError:  # 1.x has it in the settings
        server.settings.port = port
        server.run("streamable-http")


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
