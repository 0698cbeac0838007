"""What goes beside the columns: bulks, progress, pauses; each to its gateway, each said once."""

from __future__ import annotations

import json
import struct

from protos.columns import unpack
from protos.common_pb2 import EMBED, FinishReason, Limits, PromptProgress, Timings
from protos.engine_pb2 import Bulk, PromptLogprobs, TokenLogprobs
from protos.tokenizer_pb2 import TextOptions
from tests.support.fake_engine import FakeLink, finish
from tests.tokenizer_service.stage import Build, Stage, request, until


def prompt_rows(slot: int, *indexes: int) -> Bulk:
    rows = [TokenLogprobs(index=i, token_ids=[72, 0xE4], logprobs=[-1, -2]) for i in indexes]
    return Bulk(slot=slot, prompt_logprobs=PromptLogprobs(tokens=rows))


async def moved(stage: Stage) -> FakeLink:
    """Lose the engine; return the next one once it has the request."""
    stage.pipeline.detach_engine(stage.link)
    stage.link = FakeLink("second")
    stage.pipeline.attach_engine(stage.link)
    await until(lambda: bool(stage.link.adds))
    return stage.link


async def test_prompt_logprobs_get_texts_and_come_once(build: Build) -> None:
    stage = build()
    await stage.submit(5, limits=Limits(prompt_logprobs=1))
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 0, 1))
    await moved(stage)
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 0, 1))
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 1, 2))
    stage.end(0, FinishReason.LENGTH)
    rows = [row for bulk in stage.gateway.bulks for row in bulk.prompt_tokens.logprobs]
    assert [(row.slot, row.index) for row in rows] == [(5, 0), (5, 1), (5, 2)]
    first, second = rows[0].entries
    assert (first.token, first.token_bytes, first.logprob) == ("H", b"H", -1.0)
    assert (second.token, second.token_bytes) == ("\ufffd", b"\xe4")


async def test_nothing_comes_behind_a_stop_string(build: Build) -> None:
    """The engine hears of it a step later."""
    stage = build()
    await stage.submit(5, limits=Limits(prompt_logprobs=1), text=TextOptions(stop=["b"]))
    stage.step((0, 0, "ab"))
    assert stage.gateway.finishes[5].stop_string == "b"
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 1, 2))
    stage.step((0, 2, "c"))
    assert not stage.gateway.bulks


async def test_the_first_token_of_a_prompt_comes_for_its_text(build: Build) -> None:
    stage = build()
    await stage.submit(5, limits=Limits(prompt_logprobs=1))
    first = unpack(stage.link.adds[0].prompt_token_ids)[0]
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 1, 2))
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 1, 2, 3))
    rows = [row for bulk in stage.gateway.bulks for row in bulk.prompt_tokens.logprobs]
    assert [row.index for row in rows] == [0, 1, 2, 3]
    assert [entry.token_id for entry in rows[0].entries] == [first]


async def test_an_embedding_needs_no_text(build: Build) -> None:
    stage = build()
    vector = struct.pack("<3f", 1, 2, 3)
    await stage.submit(5, limits=Limits(kind=EMBED))
    assert stage.link.adds[0].limits.max_tokens == 1
    stage.pipeline.on_bulk(stage.link, Bulk(slot=0, embedding=vector))
    stage.end(0, FinishReason.STOPPED)
    assert [(bulk.slot, bulk.embedding) for bulk in stage.gateway.bulks] == [(5, vector)]
    end = stage.gateway.finishes[5]
    assert end.num_prompt_tokens == len(stage.link.adds[0].prompt_token_ids) // 4
    assert end.num_output_tokens == 0 and 5 not in stage.gateway.texts


async def test_a_trace_gets_texts(build: Build) -> None:
    stage = build()
    await stage.submit(5)
    stages = [{"stage": "top_k", "count": 2, "top": [[72, 0.75], [105, 0.25]]}]
    trace = json.dumps({"index": 0, "token_id": 72, "stages": stages}).encode()
    stage.pipeline.on_bulk(stage.link, Bulk(slot=0, trace_json=trace))
    shown = json.loads(stage.gateway.bulks[0].trace_json)
    assert shown["token"] == "H" and shown["stages"][0]["tokens"] == ["H", "i"]
    assert shown["stages"][0]["top"] == [[72, 0.75], [105, 0.25]] and shown["index"] == 0


async def test_nobody_hears_of_slots_that_have_ended(build: Build) -> None:
    stage = build()
    await stage.submit()
    stage.end(0, FinishReason.LENGTH)
    stage.pipeline.on_bulk(stage.link, prompt_rows(0, 0))
    stage.pipeline.on_bulk(stage.link, Bulk(slot=9, embedding=b"1234"))
    stage.step(progress=[PromptProgress(slot=0)])
    assert not stage.gateway.bulks and not any(b.progress for b in stage.gateway.batches)


async def test_progress_passes_with_the_gateways_slot(build: Build) -> None:
    stage = build()
    await stage.submit(5, limits=Limits(report_progress=True))
    told = PromptProgress(slot=0, num_total=100, num_cached=20, num_computed=60)
    stage.step(progress=[told])
    (shown,) = stage.gateway.batches[-1].progress
    assert (shown.slot, shown.num_total, shown.num_cached, shown.num_computed) == (5, 100, 20, 60)
    last = PromptProgress(slot=0, num_total=100, num_computed=100, timings=Timings())
    stage.step((0, 0, "a"), progress=[last])  # the only one of a prompt that fits one step
    (shown,) = stage.gateway.batches[-1].progress
    assert (shown.slot, shown.num_computed) == (5, 100)


async def test_an_end_by_a_stop_string_knows_what_the_engine_said_with_the_first_token(
    build: Build,
) -> None:
    stage = build()
    await stage.submit(5, text=TextOptions(stop=["!"]))
    assert stage.link.adds[0].limits.report_progress
    timings = Timings(queue_s=0.5, prefill_s=0.25)
    stage.step(progress=[PromptProgress(slot=0, num_total=11, num_cached=8, num_computed=9)])
    first = PromptProgress(slot=0, num_total=11, num_cached=8, num_computed=11, timings=timings)
    stage.step((0, 0, "ab!"), progress=[first])
    end = stage.gateway.finishes[5]
    assert (end.stop_string, end.num_cached_tokens, end.timings) == ("!", 8, timings)
    assert not any(batch.progress for batch in stage.gateway.batches)  # the client did not ask


async def test_pauses_reach_the_engine_that_holds_the_slot(build: Build) -> None:
    stage = build()
    await stage.submit(5, limits=Limits(n=2))
    for _ in range(2):
        stage.pipeline.pause(stage.session, 6)
    assert (stage.link.pauses, stage.link.resumes) == ([1], [])
    second = await moved(stage)
    await until(lambda: len(second.adds) == 2)
    assert second.pauses == [1]  # it is still slow, and the new engine must know
    stage.pipeline.resume(stage.session, 6)
    stage.pipeline.resume(stage.session, 5)
    stage.pipeline.resume(stage.session, 99)
    assert second.resumes == [1]


async def test_a_pause_before_the_start_is_told_at_the_start(build: Build) -> None:
    stage = build(with_engine=False)
    task = stage.pipeline.submit(stage.session, request(5))
    stage.pipeline.pause(stage.session, 5)
    stage.pipeline.attach_engine(stage.link)
    await task
    assert stage.link.pauses == [0]
    stage.step((0, 0, "a"), finishes=[finish(0, FinishReason.LENGTH, 1)])
    assert stage.gateway.texts[5] == b"a"
