"""API keys: a file of SHA-256 digests, one tenant each. The keys themselves are stored nowhere.

A line is `sha256hex  tenant  [name]`; `#` starts a comment. The file is read again when it changes.
Keys of the tenant `admin` may do what concerns all tenants; where no keys are asked, everybody may.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from common.errors import Forbidden, Unauthorized
from common.settings import SettingsError

log = logging.getLogger(__name__)
LINE = re.compile(r"([0-9a-f]{64})\s+([A-Za-z0-9_.-]{1,64})(?:\s+(\S.*))?")
CHECK_EVERY_S = 1.0
PORT = re.compile(rb":\d+$")
ADMIN = "admin"
DEFAULT_TENANT = "default"


def parse_keys(text: str) -> dict[str, str]:
    """Return tenant by digest; raise SettingsError that names the line."""
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        if (found := LINE.fullmatch(line)) is None:
            raise SettingsError(f"api_key_file: line {number} is not `sha256hex tenant [name]`")
        if keys.setdefault(found[1], found[2]) != found[2]:
            raise SettingsError(f"api_key_file: line {number} gives a key a second tenant")
    return keys


class OpenDoor:
    """Lets everybody in as one tenant: no key file is set.

    But no page of another origin: whoever looks at it has a browser on a machine that may call, and
    knows nothing of the call. Where keys are asked, no page need be refused: it has none.
    """

    def __init__(self, tenant: str = DEFAULT_TENANT) -> None:
        self._tenant = tenant

    def tenant_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the one tenant; raise Forbidden for a page of another origin."""
        if is_of_other_page(headers):
            raise Forbidden(
                "this page may not call: allowed_origins of the gateway does not name its origin",
                code="origin_not_allowed",
            )
        return self._tenant

    def is_admin(self, tenant: str) -> bool:
        return True


def is_of_other_page(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser sends this for a page of another origin.

    Newer ones say so (Fetch Metadata, w3.org/TR/fetch-metadata); of others host and origin differ.
    """
    origin = headers.get(b"origin", b"")
    if not origin:
        return False
    if site := headers.get(b"sec-fetch-site"):
        return site not in (b"same-origin", b"none")  # none: of no page, such as an extension
    asked = {hostname(headers[n]) for n in (b"host", b"x-forwarded-host") if n in headers}
    return hostname(origin.partition(b"://")[2]) not in asked


def hostname(authority: bytes) -> bytes:
    """Return host:port without the port, which proxies leave out or change."""
    return PORT.sub(b"", authority.lower())


def version_of(path: Path) -> tuple[int, ...]:
    """Return what differs between two states of a file; raise OSError.

    The time alone does not: clocks of file systems tick every few milliseconds, some every second,
    and a file that is emptied and written in one tick may be read in between. The time of writing
    is what a copy says it is (`cp -p`, `rsync -t`), that of the last change nobody can set.
    """
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


class KeyFile:
    """Lets those in whose key's digest stands in the file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises SettingsError when the file cannot be read or a line is wrong."""
        self._path = path
        self._clock = clock
        self._checked_s = clock()
        try:
            self._read_as = version_of(path)
            self._keys = parse_keys(path.read_text("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"api_key_file: {error}") from error

    def tenant_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the caller's tenant; raise Unauthorized without a known key."""
        self._reload()
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            key = headers.get(b"x-api-key", b"")  # as Anthropic's clients send it
        if not key.strip():
            raise Unauthorized("no API key; send `Authorization: Bearer KEY` or `x-api-key: KEY`")
        tenant = self._keys.get(hashlib.sha256(key.strip()).hexdigest())
        if tenant is None:
            raise Unauthorized("unknown API key")
        return tenant

    def is_admin(self, tenant: str) -> bool:
        return tenant == ADMIN

    def _reload(self) -> None:
        """Read a changed file; keep the keys we have when it is gone or broken."""
        now = self._clock()
        if now - self._checked_s < CHECK_EVERY_S:
            return
        self._checked_s = now
        try:
            version = version_of(self._path)
            if version == self._read_as:
                return
            self._keys = parse_keys(self._path.read_text("utf-8-sig"))
            self._read_as = version
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            log.error("key file not read again", extra={"error": str(error)})
        else:
            log.info("key file read again", extra={"num_keys": len(self._keys)})
