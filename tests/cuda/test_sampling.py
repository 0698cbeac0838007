"""The GPU's draw against a plain chain in float64 with the same noise."""

from __future__ import annotations

import numpy as np

from tests.cuda.case import Case, f32, i32
from worker.kernels.structs import DRAW, EDIT, TOLD
from worker.noise import gumbel, stream

VOCAB = 3000


def expected(logits, key, temperature, min_p, top_p, top_k):  # type: ignore[no-untyped-def]
    if temperature == 0:
        return int(logits.argmax())
    ids, x = np.arange(len(logits)), logits.astype(np.float64) / temperature
    if min_p:
        kept = x >= x.max() + np.log(min_p)
        ids, x = ids[kept], x[kept]
    if top_k:
        kept = x >= np.sort(x)[::-1][min(top_k, len(x)) - 1]
        ids, x = ids[kept], x[kept]
    if top_p < 1:
        weights = np.exp(x - x.max())
        falling = np.argsort(-weights, kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[falling]), top_p * weights.sum())) + 1
        kept = np.sort(falling[:count])
        ids, x = ids[kept], x[kept]
    return int(ids[(x + gumbel(key, ids)).argmax()])


def draw(case: Case, logits, draws) -> np.ndarray:  # type: ignore[no-untyped-def,type-arg]
    """Draw i goes to place i, unless that is negative."""
    draws["place"] += np.arange(len(draws), dtype=np.int32)
    out = case.put(np.full(len(draws), -9, np.int32))
    padded = np.pad(logits, ((0, 0), (0, 3)), constant_values=1e9)  # no tokens
    sizes = (i32(logits.shape[1]), i32(padded.shape[1]))
    arguments = (out, case.put(padded), case.put(draws), *sizes)
    case.gpu.launch("sample", (len(draws),), 1024, arguments)
    return case.gpu.read(out)


def test_draws_equal_the_plain_chain(case: Case) -> None:
    logits = case.normal(4, VOCAB) * f32(3)
    logits[1] = np.round(logits[1] * 2) / 2  # full of ties
    logits[2, ::3] = -np.inf
    rows, choose = [], case.rng.choice
    for i in range(40):
        settings = (float(choose([0, 0.7, 1, 1.5])), float(choose([0, 0.05])))
        settings += (float(choose([1, 0.9, 0.3])), int(choose([0, 1, 40, 500, VOCAB])))
        rows.append((stream(i, 0, 5), *settings, int(case.rng.integers(4))))
    draws = np.array(
        [
            (key, 1 / t if t else 0, np.log(p) if p else -np.inf, top_p, top_k, row, 0)
            for key, t, p, top_p, top_k, row in rows
        ],
        DRAW,
    )
    tokens = draw(case, logits, draws)
    for (key, *settings, row), token in zip(rows, tokens.tolist(), strict=True):
        assert token == expected(logits[row], key, *settings), settings


def test_cold_draws_of_tokens_side_by_side(case: Case) -> None:
    """Times 1 / temperature, floats as large as logits lie further apart than keys that compete.

    With these streams a product that is rounded before the noise comes to it draws others.
    """
    logits = (30 + np.arange(VOCAB) % 8 * 2.0**-19).astype(np.float32)
    keys = [stream(i, 0, 5) for i in (15, 52, 79, 190, 233)]
    draws = np.array([(key, 1e5, -np.inf, 1, 0, 0, 0) for key in keys], DRAW)
    tokens = draw(case, logits[None], draws)
    assert tokens.tolist() == [expected(logits, key, 1e-5, 0, 1, 0) for key in keys]


def test_what_cannot_be_drawn_is_said(case: Case) -> None:
    logits = case.normal(3, 200)
    logits[0, 7], logits[1, 9], logits[2] = np.nan, np.inf, -np.inf
    draws = np.array([(1, 1, -np.inf, 1, 0, row, 0) for row in range(3)], DRAW)
    draws = np.append(draws, np.array([(1, 1, -np.inf, 1, 0, 0, -9)], DRAW))
    assert draw(case, logits, draws).tolist() == [-1, -1, -2, -9], "the last one is none"


def test_edits_and_back(case: Case) -> None:
    logits = case.normal(3, 50)
    edits = np.array(
        [(2, 7, 1.5, 0.25, 0), (2, 8, 1, 0, 3), (-1, 3, 9, 9, 9), (0, 49, 2, 1, -100)], EDIT
    )
    device, saved = case.put(logits), case.poisoned((4,), "f32")
    arguments = (device, case.put(edits), saved, i32(4), i32(50))
    case.gpu.launch("edit_logits", (1,), 128, arguments)
    edited = logits.copy()
    for row, token, repetition, subtract, bias in edits[edits["row"] >= 0].tolist():
        biased = np.float32(logits[row, token] + np.float32(bias))
        biased = biased / f32(repetition) if biased > 0 else biased * f32(repetition)
        edited[row, token] = biased - f32(subtract)
    np.testing.assert_array_equal(case.get(device), edited)
    case.gpu.launch("restore_logits", (1,), 128, arguments)
    np.testing.assert_array_equal(case.get(device), logits)


def test_logprobs(case: Case) -> None:
    logits = np.round(case.normal(3, 500) * 4) / 4
    tokens = np.array([3, 100, 499], np.int32)
    ids = case.put(np.full((4, 6), -1, np.int32))
    out = case.poisoned((4, 6), "f32")
    told = case.put(np.array([(0, 2), (1, 0), (2, 1), (-1, 0)], TOLD))
    drawn = case.put(tokens[[1, 2, 0]])
    arguments = (ids, out, case.put(logits), told, drawn, i32(5), i32(500), i32(500))
    case.gpu.launch("log_softmax", (4,), 1024, arguments)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    wanted = np.hstack([tokens[:, None], np.argsort(-exact, axis=1, kind="stable")[:, :5]])
    np.testing.assert_array_equal(case.gpu.read(ids), [*wanted, [-1] * 6])
    np.testing.assert_allclose(case.get(out)[:3], np.take_along_axis(exact, wanted, 1), atol=1e-5)
