"""Every tool of `forkd-mcp` as it is published, called by an MCP client over its standard streams."""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

TOOLS = {
    "list_snapshots",
    "spawn_sandboxes",
    "branch_sandbox",
    "create_snapshot",
    "wait_for_text",
    "list_sandboxes",
    "get_sandbox",
    "kill_sandbox",
    "exec_command",
    "eval_code",
    "ping_sandbox",
}


class Tools:
    def __init__(self, session):
        self.session = session

    async def one(self, name, **arguments):
        """A tool's only answer."""
        (answer,) = await self.all(name, **arguments)
        return answer

    async def all(self, name, **arguments):
        """A tool's list of answers; each comes as a piece of text of its own."""
        result = await self.session.call_tool(name, arguments)
        texts = [piece.text for piece in result.content]
        assert not result.isError, texts
        return [json.loads(text) for text in texts]


async def use_all(tag, branch, booted, kernel, rootfs):
    variables = {"FORKD_HTTP_TIMEOUT": "120", **os.environ}
    server = StdioServerParameters(command=sys.executable, args=["-m", "forkd_mcp.server"], env=variables)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        assert {tool.name for tool in (await session.list_tools()).tools} == TOOLS
        tools = Tools(session)
        assert tag in {one["tag"] for one in await tools.all("list_snapshots")}
        first, second = await tools.all("spawn_sandboxes", snapshot_tag=tag, n=2, memory_limit_mib=512)
        living = {one["id"] for one in await tools.all("list_sandboxes")}
        assert {first["id"], second["id"]} <= living
        source = first["id"]
        assert (await tools.one("get_sandbox", sandbox_id=source))["snapshot_tag"] == tag
        assert (await tools.one("ping_sandbox", sandbox_id=source))["pong"] is True
        script = "(sleep 1; echo READY_TO_BRANCH) > /root/log 2>&1 &"
        ran = await tools.one("exec_command", sandbox_id=source, args=["sh", "-c", script])
        assert ran["exit_code"] == 0
        seen = await tools.one("wait_for_text", sandbox_id=source, path="/root/log", marker="READY_TO_BRANCH")
        assert seen["found"] is True
        assert (await tools.one("eval_code", sandbox_id=source, code="6 * 7"))["result"] == "42"
        taken = await tools.one("branch_sandbox", sandbox_id=source, tag=branch, mode="live")
        assert (taken["tag"], taken["status"]) == (branch, "ready")
        copy = await tools.one("spawn_sandboxes", snapshot_tag=branch, memory_limit_mib=512)
        read = await tools.one("exec_command", sandbox_id=copy["id"], args=["cat", "/root/log"])
        assert read["stdout"] == "READY_TO_BRANCH\n"
        made = await tools.one("create_snapshot", tag=booted, kernel=kernel, rootfs=rootfs)
        assert (made["tag"], made["status"], made["bootable"]) == (booted, "ready", True)
        another = await tools.one("spawn_sandboxes", snapshot_tag=booted, memory_limit_mib=512)
        for one in (first, second, copy, another):
            assert await tools.one("kill_sandbox", sandbox_id=one["id"]) == {"id": one["id"], "killed": True}
        left = {one["id"] for one in await tools.all("list_sandboxes")}
        assert not left & {one["id"] for one in (first, second, copy, another)}


def test_every_tool_works(controller, tag, fresh_tag, kernel, rootfs):
    asyncio.run(use_all(tag, fresh_tag(), fresh_tag(), kernel, rootfs))
