from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

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


def shown(
    deltas: list[dict[str, str]], clear: int | None = None, end: str = "stop"
) -> list[list[str]]:
    """Return [class, text] of the page's lines after one answer of these deltas."""
    return list(page(deltas, end, clear=clear)["lines"])


def page(deltas: list[dict[str, str]], end: str = "stop", **acts: int | None) -> dict[str, Any]:
    """Return what `page.mjs` prints; acts are `clear` and `readsBack`, numbers of chunks."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": end}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    told = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    script = str(FOLDER / "app.js")
    order = {"script": script, "chunks": [*told, "data: [DONE]\n\n"], "clear": None, **acts}
    done = subprocess.run(
        ["node", "--experimental-default-type=module", Path(__file__).parent / "page.mjs"],
        input=json.dumps(order), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@needs_node
def test_thoughts_stand_above_the_answer() -> None:
    deltas = [{"content": ""}, {"reasoning_content": "Hm"}, {"reasoning_content": "…"}]
    assert shown([*deltas, {"content": "<b>Yes"}, {"content": " 👋"}])[:3] == [
        ["message user", "Well?"],
        ["thoughts", "Hm…"],
        ["message assistant", "<b>Yes 👋"],
    ]


@needs_node
def test_an_answer_that_was_cut_off_says_so() -> None:
    cut = "cut off: the limit of tokens, or the context, is reached"
    assert ["stats", cut] in shown([{"content": "a"}], end="length")
    assert ["stats", cut] not in shown([{"content": "a"}], end="stop")


@needs_node
def test_a_new_chat_shows_nothing_of_the_answer_it_left() -> None:
    assert shown([{"content": "a"}, {"content": "b"}], clear=1) == []


@needs_node
def test_who_reads_back_is_left_there() -> None:
    """The line of numbers at the end of an answer took them away."""
    deltas = [{"reasoning_content": "Hm"}, {"content": "a"}, {"content": "b"}]
    for end in ("stop", "length"):
        assert page(deltas, end)["isAtEnd"]
        assert page(deltas, end, readsBack=1)["isAtTop"]


@needs_node
def test_what_stands_there_is_not_written_again() -> None:
    """It ended a selection with each token, and had screen readers begin again."""
    thoughts = [{"reasoning_content": word} for word in "abc"]
    answer = [{"content": word} for word in "def"]
    after = page([*thoughts, *answer])
    assert ["message assistant", "def"] in after["lines"] and ["thoughts", "abc"] in after["lines"]
    assert set(after["num_written"]) == {1}
