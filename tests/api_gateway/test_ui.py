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


def test_a_reload_keeps_nothing_that_is_out_of_sight() -> None:
    """Firefox kept two of the options, folded away, while all else was gone."""
    page = (FOLDER / "index.html").read_text()
    fields = re.findall(r"<(?:input|textarea)[^>]*>", page)
    assert len(fields) == 5 and all('autocomplete="off"' in field for field in fields)


def test_print_shows_all_of_the_talk_and_each_line_runs_its_own_way() -> None:
    """Print had one page, with what the window showed; Arabic had its stops on the wrong side."""
    style = (FOLDER / "style.css").read_text()
    on_paper = style.partition("@media print")[2]
    assert "#log { overflow: visible; }" in on_paper and "height: auto" in on_paper
    assert re.search(r"\.message div, \.thoughts div.*\{ unicode-bidi: plaintext", style)


def shown(
    deltas: list[dict[str, str]], clear: int | None = None, end: str = "stop"
) -> list[list[str]]:
    """Return [class, text] of the page's lines after one answer of these deltas."""
    return list(page(deltas, end, clear=clear)["lines"])


def page(deltas: list[dict[str, str]], end: str = "stop", **acts: Any) -> dict[str, Any]:
    """Return what `page.mjs` prints; `acts` are what it reads."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": end}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    told = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    order = {"script": str(FOLDER / "app.js"), "chunks": [*told, "data: [DONE]\n\n"]}
    order |= {"clear": None, "models": ["m"], "key": "", **acts}
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


@needs_node
def test_many_tokens_are_shown_at_once_and_long_texts_in_pieces() -> None:
    """Each token had all of the answer laid out: the page stood still over long ones."""
    words = [{"content": f"word {k}\n"} for k in range(2000)]
    after = page(words)
    answer = after["lines"].index(["message assistant", "".join(word["content"] for word in words)])
    assert after["num_added"][answer] < 200
    pieces = after["pieces"][answer]
    assert all(piece.endswith("\n") for piece in pieces)


@needs_node
def test_pieces_end_with_a_line() -> None:
    """Several writes of one answer: a reader's pause parts them."""
    words = [{"content": text} for text in ("a" * 4001, "b\nc", "d\n")]
    after = page(words, readsBack=1)
    assert ["a" * 4001 + "b\n", "cd\n"] in after["pieces"]


@needs_node
def test_an_answer_whose_connection_ends_is_not_whole() -> None:
    told = 'data: {"choices": [{"delta": {"content": "Hal"}}]}\n\n'
    lines = page([], chunks=[told])["lines"]
    assert lines[1:] == [
        ["message assistant", "Hal"],
        ["message error", "the connection ended before the answer did"],
    ]


@needs_node
def test_a_refused_question_has_the_page_look_at_the_models_again() -> None:
    """After an upgrade to another model it asked for the old one until it was loaded anew."""
    after = page([], refusal="no model m", models=["m", "other"])
    assert after["lines"][1:] == [["message error", "no model m"]] and after["model"] == "other"


@needs_node
def test_escape_ends_an_answer_but_not_from_an_input_method() -> None:
    """It takes back what is being composed there."""
    for event, ends in (({}, True), ({"isComposing": True}, False), ({"keyCode": 229}, False)):
        after = page([{"content": "a"}, {"content": "b"}], escape={"at": 1, "event": event})
        assert any(path.endswith("/cancel") for path, _ in after["calls"]) == ends, event


@needs_node
def test_the_focus_of_a_button_goes_to_the_question() -> None:
    """A button that is disabled loses it, and the next key begins at the top of the page."""
    for button in ("send", "stop"):
        assert page([{"content": "a"}], focus=button)["hasFocus"]
    assert not page([{"content": "a"}], focus="system")["hasFocus"]


@needs_node
def test_a_key_is_sent_as_its_bytes() -> None:
    """As `millrace chat` sends it; the browser refuses most letters, and has others in latin-1."""
    for path, sent in page([{"content": "a"}], key=" ключ ü ")["calls"]:
        assert sent == "Bearer " + "ключ ü".encode().decode("latin-1"), path


@needs_node
def test_a_screen_reader_is_told_who_speaks() -> None:
    after = page([{"reasoning_content": "Hm"}, {"content": "a"}])
    assert after["names"] == ["You", "Thoughts", "Answer", None]
