"""The page as an MCP tool, called by an MCP client over loopback. Needs ``pip install 'gradio[mcp]'``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dflash_demo.pairs import Pairs
from dflash_demo.settings import Limits

pytest.importorskip("gradio", reason="the demo needs: pip install 'dflash-hf[demo]'")
pytest.importorskip("mcp", reason="make test has no MCP; after pip install 'gradio[mcp]' this runs")


@pytest.fixture(scope="module")
def address(pairs: Pairs) -> Iterator[str]:
    from dflash_demo.page import build
    from dflash_demo.serve import launch_options

    page = build(pairs, Limits(new_tokens=32), mcp=True)
    page.launch(server_name="127.0.0.1", mcp_server=True, prevent_thread_lock=True, **launch_options())
    yield f"{page.local_url}gradio_api/mcp/"
    page.close()


def asked(address: str, *calls: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The tools, and the answers to calls of the first."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def talk() -> tuple[list[Any], list[Any]]:
        async with streamablehttp_client(address) as (receive, send, _), ClientSession(receive, send) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            return tools, [await session.call_tool(tools[0].name, call) for call in calls]

    return asyncio.run(talk())


def test_the_tool_is_described_and_answers(address: str) -> None:
    (tool,), (answer,) = asked(address, {"prompt": "a walk to", "max_new_tokens": 12})
    assert "DFlash speculative decoding" in tool.description
    assert tool.inputSchema["properties"]["max_new_tokens"]["type"] in ("integer", "number")
    assert "What the user says" in json.dumps(tool.inputSchema)
    assert not answer.isError
    body = json.loads(answer.content[0].text)
    assert body["verdict"]["kind"] == "identical" and body["text"]
    assert body["tokens"] == 12 and body["tau"] > 1 and "trace" not in body


def test_programs_call_the_page_as_before(address: str) -> None:
    from gradio_client import Client

    page = Client(address.removesuffix("gradio_api/mcp/"), verbose=False)
    assert page.predict("a walk to", max_new_tokens=8, api_name="/generate")["trace"]["rounds"]


def test_a_refusal_reaches_the_agent_in_words(address: str) -> None:
    _, (empty, long) = asked(address, {"prompt": " "}, {"prompt": "Hello", "max_new_tokens": 33})
    assert empty.isError and "Type a prompt first" in empty.content[0].text
    assert long.isError and "Maximum tokens is between 1 and 32, not 33" in long.content[0].text
