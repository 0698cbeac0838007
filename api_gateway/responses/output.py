"""The items of a response as they grow, and the events of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from api_gateway.responses.objects import (
    Head,
    Shown,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)

IN_PROGRESS = "in_progress"


class Events:
    """Numbers the events of one stream."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        told = {"type": f"response.{kind}", "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(told))


class Place:
    """Which item an event is of, and the only part of it that has text."""

    def __init__(self, events: Events, item_id: str, index: int) -> None:
        self._events = events
        self._item = {"output_index": index}
        self._in_item = {"item_id": item_id, **self._item}
        self.id = item_id

    def of_item(self, kind: str, item: Shown) -> bytes:
        return self._events.event(f"output_item.{kind}", **self._item, item=item)

    def of_part(self, kind: str, **fields: Any) -> bytes:
        return self._events.event(kind, **self._in_item, content_index=0, **fields)

    def of_call(self, kind: str, **fields: Any) -> bytes:
        return self._events.event(f"function_call_arguments.{kind}", **self._in_item, **fields)


class Thoughts:
    """An open reasoning item."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._texts: list[str] = []

    def begin(self) -> bytes:
        item = reasoning_item(self._place.id, None, IN_PROGRESS)
        part = {"type": "reasoning_text", "text": ""}
        return self._place.of_item("added", item) + self._place.of_part(
            "content_part.added", part=part
        )

    def add(self, text: str, logprobs: Sequence[Shown] = ()) -> bytes:
        self._texts.append(text)
        return self._place.of_part("reasoning_text.delta", delta=text)

    def end(self, status: str) -> tuple[bytes, Shown]:
        text = "".join(self._texts)
        item = reasoning_item(self._place.id, text, status)
        told = self._place.of_part("reasoning_text.done", text=text)
        told += self._place.of_part("content_part.done", part=item["content"][0])
        return told + self._place.of_item("done", item), item


class Speech:
    """An open message."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._texts: list[str] = []
        self._logprobs: list[Shown] = []

    def begin(self) -> bytes:
        item = message_item(self._place.id, None, IN_PROGRESS)
        return self._place.of_item("added", item) + self._place.of_part(
            "content_part.added", part=text_part("", [])
        )

    def add(self, text: str, logprobs: Sequence[Shown] = ()) -> bytes:
        self._texts.append(text)
        self._logprobs += logprobs
        return self._place.of_part("output_text.delta", delta=text, logprobs=logprobs)

    def end(self, status: str) -> tuple[bytes, Shown]:
        text = "".join(self._texts)
        part = text_part(text, self._logprobs)
        item = message_item(self._place.id, part, status)
        told = self._place.of_part("output_text.done", text=text, logprobs=self._logprobs)
        told += self._place.of_part("content_part.done", part=part)
        return told + self._place.of_item("done", item), item


class Called:
    """An open function call."""

    def __init__(self, place: Place, call_id: str, names: Shown) -> None:
        self._place = place
        self._call_id = call_id
        self._names = names
        self._arguments: list[str] = []

    def begin(self) -> bytes:
        return self._place.of_item("added", self._item("", IN_PROGRESS))

    def add(self, text: str, logprobs: Sequence[Shown] = ()) -> bytes:
        self._arguments.append(text)
        return self._place.of_call("delta", delta=text)

    def end(self, status: str) -> tuple[bytes, Shown]:
        arguments = "".join(self._arguments)
        item = self._item(arguments, status)
        told = self._place.of_call("done", name=self._names["name"], arguments=arguments)
        return told + self._place.of_item("done", item), item

    def _item(self, arguments: str, status: str) -> Shown:
        return call_item(self._place.id, self._call_id, self._names, arguments, status)


class Items:
    """Opens the items of a response."""

    def __init__(
        self, head: Head, events: Events, namespaces: Mapping[str, tuple[str, str]]
    ) -> None:
        self._head = head
        self._events = events
        self._namespaces = namespaces

    def thoughts(self, index: int) -> Thoughts:
        return Thoughts(self._place("rs", index))

    def speech(self, index: int) -> Speech:
        return Speech(self._place("msg", index))

    def call(self, index: int, call_id: str, name: str) -> Called:
        namespace, own = self._namespaces.get(name, (None, name))
        names = {"name": own, **({"namespace": namespace} if namespace else {})}
        return Called(self._place("fc", index), call_id, names)

    def _place(self, kind: str, index: int) -> Place:
        return Place(self._events, self._head.item_id(kind, index), index)
