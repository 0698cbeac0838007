"""Files of other users, for tests that may be run by any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` another user's, who may be none that the tests can give it to."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
