from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from api_gateway.settings import Settings
from common.settings import SettingsError, load
from tests.api_gateway.conftest import in_process, running, until
from tests.api_gateway.requests import chat
from tests.support.fake_tokenizer import FakeTokenizer

PATH = "/v1/chat/completions"
MINE, OTHER = "https://chat.example", "https://other.example"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@asynccontextmanager
async def calling(fake: FakeTokenizer, origins: str) -> AsyncIterator[httpx.AsyncClient]:
    async with running(fake.address, allowed_origins=origins) as gateway:
        await until(lambda: bool(gateway.clients.states()))
        async with in_process(gateway) as http:
            yield http


def told(reply: httpx.Response) -> set[str]:
    return {name for name in reply.headers if name.startswith("access-control-")}


@pytest.mark.parametrize("origins", [f"{OTHER}x, {MINE}/", "*"])
async def test_pages_of_the_origins_named_may_call(fake: FakeTokenizer, origins: str) -> None:
    async with calling(fake, origins) as http:
        asked = await http.options(PATH, headers={"Origin": MINE, **PREFLIGHT})
        assert asked.status_code == 204 and asked.content == b""
        assert asked.headers["access-control-allow-methods"] == "GET, POST"
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        for reply in (
            asked,
            await http.post(PATH, json=chat(stream=True), headers={"Origin": MINE}),
            await http.post(PATH, json={"model": 1}, headers={"Origin": MINE}),
        ):
            allowed = reply.headers["access-control-allow-origin"]
            assert allowed == ("*" if origins == "*" else MINE)
            assert reply.headers["vary"] == "origin"
        shown = reply.headers["access-control-expose-headers"]
        assert "x-request-id" in shown and "x-should-retry" in shown
        assert not told(await http.post(PATH, json=chat()))


@pytest.mark.parametrize("origins", ["", MINE])
async def test_pages_of_other_origins_may_not(fake: FakeTokenizer, origins: str) -> None:
    async with calling(fake, origins) as http:
        asked = await http.options(PATH, headers={"Origin": OTHER, **PREFLIGHT})
        assert asked.status_code == 405 and not told(asked)
        for headers in ({"Origin": OTHER}, {"Origin": "null"},
                        {"Origin": OTHER, "Sec-Fetch-Site": "cross-site"},
                        {"Origin": OTHER, "Content-Type": "text/plain"}):  # fmt: skip
            reply = await http.post(PATH, json=chat(), headers=headers)
            assert reply.status_code == 403 and not told(reply)
            assert reply.json()["error"]["code"] == "origin_not_allowed"


async def test_the_gateways_own_page_may_call(fake: FakeTokenizer) -> None:
    async with calling(fake, "") as http:
        own = f"http://{http.base_url.netloc.decode()}"
        for headers in ({"Origin": own}, {"Origin": f"{own}:3000"},
                        {"Origin": MINE, "X-Forwarded-Host": "chat.example:8443"},
                        {"Origin": MINE, "Sec-Fetch-Site": "same-origin"}):  # fmt: skip
            reply = await http.post(PATH, json=chat(), headers=headers)
            assert reply.status_code == 200 and not told(reply)


@pytest.mark.parametrize("origins", ["chat.example", "https://a/b", "https://a b", ","])
def test_what_is_no_origin_is_refused_at_start(origins: str) -> None:
    with pytest.raises(SettingsError, match="allowed_origins"):
        load(Settings, "gateway", [f"--allowed_origins={origins}"], {})
