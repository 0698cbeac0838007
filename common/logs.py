"""One JSON object a line on stderr, with the service's name and whatever fields the caller adds."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as JSON; fields given as `extra={…}` become keys of the line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service
        self._encode = msgspec.json.Encoder(enc_hook=str).encode

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._encode(line).decode()


def setup(service: str, level: str = "info") -> logging.Logger:
    """Send all logging of this process to stderr as JSON lines; return the service's logger."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines(service))
    logging.basicConfig(level=level.upper(), handlers=[out], force=True)
    return logging.getLogger(service)
