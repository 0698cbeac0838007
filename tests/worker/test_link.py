"""Which address a worker dials for a name, and that it follows a name that changes its kind."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
import zmq

from common.channel import Router
from protos.worker import FromWorker, Hello, Lease
from worker import link as links
from worker.link import Event, Link, Lost, Received, dialled

HELLO = Hello("host", "cpu", "m", "1")
Hosts = dict[str, dict[int, str]]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Names of our own, by family."""
    ask = socket.getaddrinfo
    known: Hosts = {}

    def lookup(host: str, port: Any, family: int = 0, *rest: Any, **more: Any) -> Any:
        if host in known or host.endswith(".test"):
            if family not in known.get(host, {}):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = known[host][family]
        return ask(host, port, family, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return known


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_a_name_without_ipv4_is_dialled_by_its_ipv6(hosts: Hosts) -> None:
    hosts["six.test"] = {socket.AF_INET6: "fd00::7"}
    hosts["both.test"] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
    assert dialled("tcp://six.test:7202") == "tcp://[fd00::7]:7202"
    for as_it_is in ("both.test:7202", "none.test:7202", "127.0.0.1:7202", "[::1]:7202"):
        assert dialled(f"tcp://{as_it_is}") == f"tcp://{as_it_is}"


def test_a_front_whose_name_gets_another_address_is_lost(
    hosts: Hosts, context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def look(address: str) -> str:
        looks.append(dialled(address))
        if len(looks) == 2:  # it is looked up again and again
            hosts["engine.test"] = {socket.AF_INET6: "::1"}
        return looks[-1]

    monkeypatch.setattr(links, "dialled", look)
    monkeypatch.setattr(links, "MAX_RETRIES", 2)
    inbox: SimpleQueue[Event] = SimpleQueue()
    link = Link(context, "tcp://engine.test:9", inbox, HELLO)
    event = inbox.get(timeout=20)
    link.close()
    assert isinstance(event, Lost) and "another address" in event.reason


def test_hello_is_said_again_in_case_it_was_lost(
    context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HELLO_S", 0.05)
    front: Router[FromWorker] = Router(context, "tcp://127.0.0.1:*", FromWorker)
    inbox: SimpleQueue[Event] = SimpleQueue()
    link = Link(context, f"tcp://127.0.0.1:{front.port}", inbox, HELLO)
    said = [front.receive(20) for _ in range(3)]
    assert said[0] is not None and said[0][1] == HELLO and said == [said[0]] * 3
    front.send(said[0][0], Lease(0, 0, 1, 1))
    assert isinstance(inbox.get(timeout=20), Received)
    while front.receive(0.2) is not None:  # what was under way
        pass
    assert front.receive(0.3) is None, "it has a lease"
    link.close()
    front.close()


def test_hellos_do_not_pile_up_while_nobody_is_there(
    context: zmq.Context[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HELLO_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    link = Link(context, f"tcp://127.0.0.1:{port}", SimpleQueue(), HELLO)
    time.sleep(0.5)
    monkeypatch.setattr(links, "HELLO_S", 60.0)
    front: Router[FromWorker] = Router(context, f"tcp://127.0.0.1:{port}", FromWorker)
    assert front.receive(20) is not None and front.receive(0.5) is None
    link.close()
    front.close()


def test_what_is_no_address_is_lost_and_can_be_closed(context: zmq.Context[Any]) -> None:
    inbox: SimpleQueue[Event] = SimpleQueue()
    link = Link(context, "tcp://*:7202", inbox, HELLO)
    event = inbox.get(timeout=20)
    assert isinstance(event, Lost) and "tcp://*:7202" in event.reason
    link.send(HELLO)
    link.close()
