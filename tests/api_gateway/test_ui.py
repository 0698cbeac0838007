from __future__ import annotations

import re

import httpx

from api_gateway.ui_files import FOLDER
from millrace.project import DEMO_NAME


async def test_the_page_is_served_with_a_strict_policy(client: httpx.AsyncClient) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/ui/app.js", "text/javascript"),
        ("/ui/style.css", "text/css"),
    ):
        reply = await client.get(path)
        assert reply.status_code == 200 and reply.headers["content-type"].startswith(kind)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    for path in ("/ui/", "/ui/none", "/ui/../settings.py", "/ui/%2e%2e/settings.py"):
        assert (await client.get(path)).status_code == 404, path


def test_nothing_becomes_html_and_nothing_is_inline() -> None:
    page, script = (FOLDER / "index.html").read_text(), (FOLDER / "app.js").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)
    assert not re.search(r"localStorage|sessionStorage|cookie|https?://", script + page)
    for name in re.findall(r'\$\("(\w+)"\)', script):
        assert f'id="{name}"' in page, name
    assert f'DEMO_MODEL = "{DEMO_NAME}"' in script
