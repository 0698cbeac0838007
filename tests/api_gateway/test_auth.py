from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import httpx
import pytest

from api_gateway.app import routes
from api_gateway.auth import KeyFile, OpenDoor, parse_keys
from common.errors import Forbidden, Unauthorized
from common.settings import SettingsError
from tests.api_gateway.conftest import in_process, running
from tests.api_gateway.requests import chat
from tests.support.fake_tokenizer import FakeTokenizer


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(
        f"\ufeff# keys\n{digest('sk-a')}  team-a  laptop  # old\n\n{digest('sk-b')} team-b\n"
    )
    return path


def test_each_key_has_its_tenant(file: Path) -> None:
    keys = KeyFile(file)
    assert keys.tenant_of(bearer("sk-a")) == "team-a"
    assert keys.tenant_of({b"authorization": b"bearer  sk-b"}) == "team-b"
    assert keys.tenant_of({b"x-api-key": b"sk-b"}) == "team-b"
    assert keys.tenant_of({b"x-api-key": b"sk-b", **bearer("sk-a")}) == "team-a"
    for empty in (b"Bearer ", b"Basic c2stYTo="):  # as clients without a key of that kind send it
        assert keys.tenant_of({b"authorization": empty, b"x-api-key": b"sk-b"}) == "team-b"
    refused = (
        {}, bearer("sk-c"), bearer(""), bearer(digest("sk-a")), {b"authorization": b"sk-a"},
        {b"authorization": b"Basic sk-a"}, {b"authorization": b"Token sk-a"},
        {b"x-api-key": b"sk-c"}, {b"x-api-key": b" "}, {b"x-api-key": b"sk-a", **bearer("sk-c")},
    )  # fmt: skip
    for headers in refused:
        with pytest.raises(Unauthorized):
            keys.tenant_of(headers)


def test_nobody_but_admin_is_admin(file: Path) -> None:
    keys = KeyFile(file)
    assert keys.is_admin("admin")
    assert not any(map(keys.is_admin, ("", "Admin", "admins", "admin.b", "default", "team-a")))


@pytest.mark.parametrize(
    ("site", "is_let_in"),
    [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)],
)
def test_what_a_browser_says_of_a_page_decides(site: str, is_let_in: bool) -> None:
    headers = {b"host": b"x", b"origin": b"http://x", b"sec-fetch-site": site.encode()}
    with contextlib.nullcontext() if is_let_in else pytest.raises(Forbidden):
        assert OpenDoor().tenant_of(headers) == "default"


@pytest.mark.parametrize("line", ["sk-a team", "abc", digest("x"), f"{digest('x')} té", "Z" * 70])
def test_a_wrong_line_is_named_by_its_number(line: str) -> None:
    with pytest.raises(SettingsError, match="line 2"):
        parse_keys(f"# first\n{line}\n")


def test_a_key_has_one_tenant() -> None:
    twice = f"{digest('x')} team\n{digest('x')} team  again\n"
    assert parse_keys(twice) == {digest("x"): "team"}
    with pytest.raises(SettingsError, match="line 3 gives a key a second tenant"):
        parse_keys(f"{twice}{digest('x')} other\n")


def test_a_missing_file_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="api_key_file"):
        KeyFile(tmp_path / "none")


def test_a_file_that_was_read_while_it_was_written_is_read_again(file: Path) -> None:
    """Emptied, read and written within one tick of the clock it locked everybody out for good."""
    now = [0.0]
    keys = KeyFile(file, clock=lambda: now[0])
    for text in ("", f"{digest('sk-c')} team-c\n"):
        file.write_text(text)
        os.utime(file, (1, 1))
        now[0] += 2
        with contextlib.suppress(Unauthorized):
            keys.tenant_of(bearer("sk-c"))
    assert keys.tenant_of(bearer("sk-c")) == "team-c"


def test_a_key_that_another_of_its_length_and_time_replaced_is_refused(file: Path) -> None:
    """As `cp -p` and `rsync -t --inplace` write it, of a folder whose files have all one time."""
    now = [0.0]
    os.utime(file, (1, 1))
    keys, before = KeyFile(file, clock=lambda: now[0]), file.stat()
    file.write_text(file.read_text().replace(digest("sk-a"), digest("sk-c")))
    os.utime(file, (1, 1))
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has not ticked yet
        os.utime(file, (1, 1))
    assert (before.st_size, before.st_mtime_ns) == (file.stat().st_size, file.stat().st_mtime_ns)
    now[0] += 2
    with pytest.raises(Unauthorized):
        keys.tenant_of(bearer("sk-a"))
    assert keys.tenant_of(bearer("sk-c")) == "team-a"


def test_a_changed_file_is_read_again_and_a_broken_one_is_not_obeyed(file: Path) -> None:
    now = [0.0]
    keys = KeyFile(file, clock=lambda: now[0])

    def rewrite(text: str, mtime: int) -> None:
        file.write_text(text)
        os.utime(file, (mtime, mtime))
        now[0] += 2

    rewrite(f"{digest('sk-c')} team-c\n", 1)
    assert keys.tenant_of(bearer("sk-c")) == "team-c"
    with pytest.raises(Unauthorized):
        keys.tenant_of(bearer("sk-a"))
    rewrite("nonsense\n", 2)
    assert keys.tenant_of(bearer("sk-c")) == "team-c"
    file.write_bytes(b"\xff\xfe")
    now[0] += 2
    assert keys.tenant_of(bearer("sk-c")) == "team-c"
    file.unlink()
    now[0] += 2
    assert keys.tenant_of(bearer("sk-c")) == "team-c"
    rewrite("", 3)  # no keys: nobody, not everybody
    with pytest.raises(Unauthorized):
        keys.tenant_of(bearer("sk-c"))


async def test_all_routes_but_the_listed_ones_ask_for_a_key(
    fake: FakeTokenizer, file: Path
) -> None:
    public = {
        "/live",
        "/ready",
        "/health",
        "/version",
        "/metrics",
        "/",
        "/ui/{id}",
        "/openapi.json",
    }
    async with (
        running(fake.address, api_key_file=str(file)) as gateway,
        in_process(gateway) as http,
    ):
        for route in routes(gateway.endpoints):
            assert route.is_public == (route.path in public), route.path
            if not route.is_public:
                path = route.path.replace("{id}", "x").replace("{name}", "x")
                reply = await http.request(route.method, path)
                assert reply.status_code == 401, route.path
                assert reply.headers["www-authenticate"] == "Bearer"
                assert reply.headers["x-should-retry"] == "false"
                assert reply.json()["error"]["code"] == "invalid_api_key"
        for path in ("/live", "/version", "/metrics", "/", "/ui/app.js"):
            assert (await http.get(path)).status_code == 200, path


async def test_the_tenant_is_the_keys_and_cancel_stays_within_it(
    fake: FakeTokenizer, file: Path
) -> None:
    async with (
        running(fake.address, api_key_file=str(file)) as gateway,
        in_process(gateway) as http,
    ):
        headers = {"Authorization": "Bearer sk-b"}
        reply = await http.post("/v1/chat/completions", json=chat(), headers=headers)
        assert reply.status_code == 200
        assert fake.streams[0].requests_seen[1].limits.tenant == "team-b"
        await http.post("/v1/requests/r/cancel", headers=headers)
        assert fake.cancels == [("r", "team-b")]


async def test_no_file_lets_everybody_in_as_the_default_tenant(
    client: httpx.AsyncClient, fake: FakeTokenizer
) -> None:
    assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
    assert fake.streams[0].requests_seen[1].limits.tenant == "default"


def test_a_file_that_could_not_be_read_is_read_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    keys = KeyFile(file, clock=lambda: now[0])
    file.write_text(f"{digest('sk-c')} team-c\n")
    os.utime(file, (1, 1))

    def no_descriptor(_: Path, encoding: str) -> str:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", no_descriptor)
        now[0] += 2
        assert keys.tenant_of(bearer("sk-a")) == "team-a"
    now[0] += 2
    with pytest.raises(Unauthorized):
        keys.tenant_of(bearer("sk-a"))
    assert keys.tenant_of(bearer("sk-c")) == "team-c"
