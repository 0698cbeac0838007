"""Every choice of a request ends once, however its news overlap with what is being read."""

from __future__ import annotations

from api_gateway.sessions import Choice, Mailbox
from millrace.pieces import Taker
from protos.common_pb2 import LENGTH, Finish


async def test_an_end_that_came_while_a_piece_was_read_is_told_once() -> None:
    mailbox = Mailbox()
    first, second = (Choice(mailbox, number=number) for number in range(2))
    taker = Taker([first, second])
    for choice in (first, second):
        choice.add(0, "a", 0, b"\1\0\0\0")
        mailbox.post(choice)
    pieces = taker.take(await mailbox.wait())
    assert next(pieces).choice == 0
    second.end(Finish(reason=LENGTH))  # before its turn: in its piece, and news once more
    (piece,) = pieces
    assert (piece.text, len(piece.token_ids)) == ("a", 1) and piece.finish is not None
    assert taker.num_open == 1
    first.end(Finish(reason=LENGTH))
    (piece,) = taker.take(await mailbox.wait())
    assert piece.choice == 0 and piece.finish is not None and taker.num_open == 0
