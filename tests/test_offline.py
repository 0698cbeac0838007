"""The offline face on every model folder at hand: the very tiers of a server, in one process.

The tiny folder is made here; the demo model and the golden folders join when they are present; the
tests marked `model` run on a user's own folder.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import Cancelled, InvalidRequest, ServiceError
from millrace import LLM, AsyncLLM, RequestOutput, SamplingParams, in_process
from millrace.cli import main
from millrace.client import Piece
from millrace.project import DEMO_MODEL
from protos.common_pb2 import ABORTED, Finish
from tests.conftest import ROOT
from tests.support.model_folders import without_prefix, write_safetensors
from tests.support.tiny_model import write_tiny_model

KV_CACHE_MEMORY = "8MiB"
GOLDEN = sorted((ROOT / "tests" / "golden").glob("qwen2-tiny-*"))
DEMO = [DEMO_MODEL] if (DEMO_MODEL / "config.json").exists() else []


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", params=["tiny", *DEMO], ids=lambda p: Path(p).name)
def llm(request: pytest.FixtureRequest, tiny: Path) -> Iterator[LLM]:
    """Folders with a tokenizer."""
    folder = tiny if request.param == "tiny" else request.param
    with LLM(folder, kv_cache_memory=KV_CACHE_MEMORY) as opened:
        yield opened


@pytest.fixture(scope="module", params=["tiny", *GOLDEN], ids=lambda p: Path(p).name)
def ids_llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> (
    Iterator[LLM]
):  # fmt: skip
    """Folders without one."""
    folder = request.param
    if folder == "tiny":
        folder = write_tiny_model(tmp_path_factory.mktemp("models") / "ids", tokenizer=False)
    with LLM(folder, kv_cache_memory=KV_CACHE_MEMORY) as opened:
        yield opened


def sampled(seed: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 16, "seed": seed, "temperature": 1.0, **fields})


def text(output: RequestOutput) -> str:
    return output.outputs[0].text


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["one", {"prompt": "two"}, {"prompt_token_ids": [1, 2, 3]}]
    outputs = llm.generate(prompts, [sampled(i, max_tokens=4 + i) for i in range(3)])
    assert [output.prompt for output in outputs] == ["one", "two", None]
    assert outputs[2].prompt_token_ids == [1, 2, 3]
    assert outputs[0].prompt_token_ids
    for index, output in enumerate(outputs):
        assert output.finished
        assert output.num_prompt_tokens == len(output.prompt_token_ids or ())
        assert output.outputs[0].finish_reason in ("length", "stop")
        assert 1 <= len(ids(output)) <= 4 + index
    assert len({output.request_id for output in outputs}) == 3


def test_what_is_cached_changes_no_answer(llm: LLM) -> None:
    prompt = "the mill turns while the river runs " * 8
    first, second = (llm.generate(prompt, sampled(5, n=2, logprobs=2))[0] for _ in range(2))
    assert first.num_cached_tokens < 16 <= second.num_cached_tokens < second.num_prompt_tokens
    for one, other in zip(first.outputs, second.outputs, strict=True):
        assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def test_the_text_is_the_tokens_text(llm: LLM) -> None:
    (output,) = llm.generate("Hello", sampled(1, logprobs=0))
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None and len(logprobs) == len(ids(output))
    pieces = b"".join(row[i].token_bytes for row, i in zip(logprobs, ids(output), strict=True))
    assert pieces.decode(errors="replace").startswith(text(output)[:8])


def test_a_stream_joined_is_the_answer(llm: LLM) -> None:
    (whole,) = llm.generate("Hello", sampled(3))
    deltas = list(llm.stream("Hello", sampled(3)))  # how many depends on the machine
    assert "".join(map(text, deltas)) == text(whole)
    assert [i for delta in deltas for i in ids(delta)] == ids(whole)
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].outputs[0].finish_reason == whole.outputs[0].finish_reason


class Gate:
    """Counts the rows that get a token, and holds the engine before one of its steps."""

    def __init__(self, llm: LLM, num_free: int) -> None:
        self.num_rows = 0
        self._num_free = num_free
        self._open = threading.Event()
        self.reached = threading.Event()
        self._hook = llm.register_hook("logits", self._pass)

    def open(self) -> None:
        self._open.set()

    def remove(self) -> None:
        self.open()
        self._hook.remove()

    def _pass(self, name: str, logits: Any, layer: int) -> None:
        if self.num_rows >= self._num_free:
            self.reached.set()
            self._open.wait()
        self.num_rows += len(logits)


@pytest.fixture
def gate(llm: LLM) -> Iterator[Gate]:
    """Eight tokens, and then none until it is opened."""
    standing = Gate(llm, 8)
    yield standing
    standing.remove()


def test_a_stream_tells_what_there_is_and_may_be_left(llm: LLM, gate: Gate) -> None:
    """The first delta comes while the engine is held, and what nobody reads is not computed."""
    stream = llm.stream("Hello", sampled(3, max_tokens=200, ignore_eos=True))
    first = next(stream)
    assert not first.finished and 1 <= len(ids(first)) <= 8
    stream.close()
    gate.open()
    (whole,) = llm.generate("Hello", sampled(3))
    assert text(whole).startswith(text(first))
    assert gate.num_rows <= 8 + 2 + 16, "the stream that was left went on"


def test_what_ctrl_c_has_ended_is_not_computed(
    llm: LLM, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = concurrent.futures.Future.result

    def interrupted(future: concurrent.futures.Future[Any], timeout: float | None = None) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return result(future, timeout)  # the loop's, of its own threads
        gate.reached.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        llm.generate("Hello", sampled(3, max_tokens=200, ignore_eos=True))
    gate.open()
    llm.generate("Hello", sampled(3))
    # Nobody says when the end has come to the engine: a few more steps may be ahead of it.
    assert gate.num_rows <= 8 + 100 + 16, "what nobody waits for went on"


def test_chat_uses_the_folders_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    (answer,) = llm.chat(messages, sampled(5))
    assert answer.prompt_token_ids
    (same,) = llm.generate({"prompt_token_ids": answer.prompt_token_ids}, sampled(5))
    assert text(same) == text(answer)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    both = llm.chat([messages, parts], sampled(5))
    assert [text(one) for one in both] == [text(answer)] * 2
    deltas = llm.stream({"messages": messages}, sampled(5))  # how many depends on the machine
    assert "".join(text(delta) for delta in deltas) == text(answer)


def test_many_prompts_at_once_are_each_as_if_alone(llm: LLM) -> None:
    prompts = [f"{'word ' * (i % 7)}{i}" for i in range(300)]
    params = [sampled(i, max_tokens=1 + i % 12) for i in range(300)]
    together = llm.generate(prompts, params)
    for index in range(0, 300, 37):
        (alone,) = llm.generate(prompts[index], params[index])
        assert ids(alone) == ids(together[index])
        assert text(alone) == text(together[index])


def test_seeds(llm: LLM) -> None:
    def draw(seed: int | None) -> list[int]:
        return ids(llm.generate("Hello", SamplingParams(seed=seed, temperature=1.5))[0])

    assert draw(1) == draw(1)
    assert draw(-2) == draw(2**64 - 2)
    assert len({tuple(draw(None)) for _ in range(8)}) > 1
    greedy = [ids(llm.generate("Hello", sampled(s, temperature=0))[0]) for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_a_seeded_run_is_repeatable(tiny: Path) -> None:
    runs = []
    for _ in range(2):
        with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY, seed=np.int64(7)) as llm:
            runs.append([ids(output) for output in llm.generate(["a", "a", "b"])])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_layouts_answer_alike(tiny: Path) -> None:
    told = []
    for layout in ("block", "slot", "static"):
        with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY, kv_layout=layout, seed=7) as llm:
            told.append([ids(output) for output in llm.generate(["a", "a", "b" * 40])])
    assert told[0] == told[1] == told[2]


def test_guesses_change_no_answer(tiny: Path) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 9}
    kinds = [
        {"temperature": 0.0, "logprobs": 2},
        {"seed": 3, "n": 2, "repetition_penalty": 1.1, "dry_multiplier": 0.5},
        {"temperature": 0.0, "stop": "a", "return_sampler_trace": True},
        {"seed": 1, "structured_outputs": {"json": schema}},
    ]
    params = [SamplingParams(max_tokens=80, ignore_eos=i < 2, **k) for i, k in enumerate(kinds)]
    told = []
    for num_guesses in (0, 4):
        with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY, num_guesses=num_guesses) as llm:
            outputs = llm.generate(["abcabcabcabc"] * len(kinds), params)
        told.append([asdict(one) for output in outputs for one in output.outputs])
    assert told[0] == told[1]


def test_evicted_prompts_come_back_from_host_memory(tiny: Path) -> None:
    prompts = [{"prompt_token_ids": [i] * 49} for i in range(8)]
    told, cached = [], []
    for host in ("0", "1MiB"):
        with LLM(tiny, kv_cache_memory="40KiB", host_kv_memory=host) as llm:
            outputs = [llm.generate(p, sampled(1, max_tokens=4))[0] for p in prompts * 2]
        told.append([ids(output) for output in outputs])
        cached.append([output.num_cached_tokens for output in outputs])
    assert told[0] == told[1]
    assert cached == [[0] * 16, [0] * 8 + [48] * 8]


def test_several_answers(llm: LLM) -> None:
    (output,) = llm.generate("Hello", sampled(1, n=8, temperature=2.0))
    assert [one.index for one in output.outputs] == list(range(8))
    assert len({tuple(one.token_ids) for one in output.outputs}) > 2  # a trained model is sure
    (first,) = llm.generate("Hello", sampled(1, temperature=2.0))
    assert ids(first) == output.outputs[0].token_ids


def test_stop_strings(llm: LLM) -> None:
    (whole,) = llm.generate("Hello", sampled(1, ignore_eos=True))
    stop = text(whole)[3:5]
    (cut,) = llm.generate("Hello", sampled(1, ignore_eos=True, stop=stop))
    assert text(cut) == text(whole)[: text(whole).index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    with_stop = sampled(1, ignore_eos=True, stop=[stop], include_stop_str_in_output=True)
    (kept,) = llm.generate("Hello", with_stop)
    assert text(kept) == text(cut) + stop


def test_stop_token_ids(llm: LLM) -> None:
    (whole,) = llm.generate("Hello", sampled(1, ignore_eos=True))
    stop = ids(whole)[5]
    (cut,) = llm.generate("Hello", sampled(1, ignore_eos=True, stop_token_ids=[stop]))
    assert ids(cut) == ids(whole)[: ids(whole).index(stop) + 1]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)


def test_logprobs(llm: LLM) -> None:
    (output,) = llm.generate("Hello", sampled(1, temperature=0, logprobs=3))
    rows = output.outputs[0].logprobs
    assert rows is not None
    for row, token_id in zip(rows, ids(output), strict=True):
        values = [candidate.logprob for candidate in row.values()]
        assert next(iter(row)) == token_id
        assert len(row) == 3 and values == sorted(values, reverse=True) and values[0] <= 0


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", {}, "the prompt is empty"),
        (5, {}, "a prompt must be a string"),
        ({"text": "x"}, {}, "a prompt must be a string"),
        ({"prompt": "x", "suffix": "y"}, {}, "may not also have \\['suffix'\\]"),
        ({"prompt_token_ids": []}, {}, "the prompt is empty"),
        ({"prompt_token_ids": [-1]}, {}, "has -1, no id"),
        ({"prompt_token_ids": [10**9]}, {}, "but the vocabulary has"),
        ({"messages": [{"content": "x"}]}, {}, "role is required"),
        ({"messages": [{"role": "user"}], "tool": 1}, {}, "unknown chat options \\['tool'\\]"),
        ("x", {"max_tokens": 10**6}, "max_tokens is 1000000"),
        ("x", {"stop_token_ids": [10**6]}, "stop_token_ids has token id 1000000"),
    ],
)
def test_bad_input_is_refused(llm: LLM, prompt: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate([prompt], SamplingParams(**params))


def test_a_bad_schema_is_blamed_on_the_field_it_stands_in(llm: LLM) -> None:
    schema = {"type": "nothing"}
    for field, given in (
        ("structured_outputs", {"json": schema}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": schema}}),
    ):
        with pytest.raises(InvalidRequest, match=f"^{field}: ") as refused:
            llm.generate("x", SamplingParams(**{field: given}))  # type: ignore[arg-type]
        assert refused.value.param == field


def test_an_empty_text_of_a_vector_is_an_empty_input(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="the input is empty"):
        llm.embed("")


def test_a_model_without_a_head_embeds_and_says_nothing(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(tiny, folder)
    config = json.loads((tiny / "config.json").read_text())
    config |= {"architectures": ["Qwen2Model"], "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", without_prefix(tiny))
    with (
        LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY) as whole,
        LLM(folder, kv_cache_memory=KV_CACHE_MEMORY) as base,
    ):
        assert base.embed("one two")[0].embedding == whole.embed("one two")[0].embedding
        with pytest.raises(InvalidRequest, match="serves embeddings, and no text") as refused:
            base.generate("one")
    assert refused.value.param == "model"


def test_a_vector_may_be_cut(llm: LLM) -> None:
    whole, cut = (llm.embed("one two", dimensions=count)[0].embedding for count in (None, 4))
    assert len(cut) == 4 < len(whole)
    size = sum(x * x for x in whole[:4]) ** 0.5
    assert cut == pytest.approx([x / size for x in whole[:4]], rel=1e-4)


def test_what_is_told_beside_each_token(llm: LLM) -> None:
    """Of all answers together, and of the prompt once."""
    params = sampled(1, n=2, max_tokens=4, ignore_eos=True, return_sampler_trace=True)
    params = replace(params, prompt_logprobs=1)
    (output,) = llm.generate("one two three", params)
    assert [len(one.sampler_trace or ()) for one in output.outputs] == [4, 4]
    first, *rows = output.prompt_logprobs or ()
    assert first is None and len(rows) == output.num_prompt_tokens - 1
    assert all(
        token_id in (row or {})
        for token_id, row in zip(output.prompt_token_ids[1:], rows, strict=True)
    )


def test_a_folder_that_cannot_be_named_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no model folder at"):
        LLM("a\0b")


def test_one_bad_prompt_ends_the_call_and_nothing_else(llm: LLM) -> None:
    with pytest.raises(ServiceError):
        llm.generate(["good", {"prompt_token_ids": [10**9]}], sampled(1, max_tokens=100))
    with pytest.raises(InvalidRequest, match="2 params for 1 prompts"):
        llm.generate(["x"], [sampled(1), sampled(2)])
    assert len(llm.generate("good", sampled(1))) == 1


def test_the_longest_sequence_can_be_lowered_not_raised(tiny: Path) -> None:
    with pytest.raises(InvalidRequest, match="max_model_len is 513, the model has 512 positions"):
        LLM(tiny, max_model_len=513)
    for asked, allowed in ((64, 64), (512, 512)):
        with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY, max_model_len=asked) as llm:
            with pytest.raises(InvalidRequest, match=f"is {allowed} tokens, and max_tokens is"):
                llm.generate("Hello", sampled(1, max_tokens=allowed + 1))
            for max_tokens in (allowed - 5, allowed):  # the prompt has 5
                fitting = sampled(1, max_tokens=max_tokens, ignore_eos=True)
                assert len(ids(llm.generate("Hello", fitting)[0])) == allowed - 5


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), MemoryError("too much")])
def test_memory_that_is_not_there_is_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        raise error

    monkeypatch.setattr("millrace.in_process._load", load)
    with pytest.raises(InvalidRequest, match=r"Cannot allocate memory|too much"):
        LLM(write_tiny_model(tmp_path / "m"))


def test_weights_that_are_no_numbers_are_refused_at_load(tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path / "broken") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")
    with pytest.raises(InvalidRequest, match="warm-up failed: .* are all weights numbers"):
        LLM(file.parent, kv_cache_memory=KV_CACHE_MEMORY)


def test_a_folder_without_a_tokenizer_works_with_ids(ids_llm: LLM) -> None:
    prompts = [{"prompt_token_ids": [1, 2, 3 + i]} for i in range(6)]
    together = ids_llm.generate(prompts, sampled(1, temperature=0))
    alone = [ids_llm.generate(prompt, sampled(1, temperature=0))[0] for prompt in prompts]
    assert [ids(one) for one in together] == [ids(one) for one in alone]
    assert all(text(one) == "" for one in together)
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        ids_llm.generate("text")


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda p: p.name)
def test_greedy_answers_are_those_of_the_reference(folder: Path) -> None:
    golden = json.loads((folder / "golden.json").read_text())["prompts"]
    with LLM(folder, dtype="float32", kv_cache_memory=KV_CACHE_MEMORY) as llm:
        outputs = llm.generate(
            [{"prompt_token_ids": row["ids"]} for row in golden],
            [
                sampled(1, temperature=0, max_tokens=len(row["greedy_ids"]), ignore_eos=True)
                for row in golden
            ],
        )
    assert [ids(output) for output in outputs] == [row["greedy_ids"] for row in golden]


# ── opening and closing ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "/nowhere"}, "no model folder at /nowhere"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"kv_cache_memory": "much"}, "kv_cache_memory is 'much', allowed: a number and one"),
        ({"kv_cache_memory": 1e8}, "kv_cache_memory must be bytes as a whole number"),
        ({"host_kv_memory": True}, "host_kv_memory must be bytes as a whole number"),
        ({"kv_cache_memory": -5}, "kv_cache_memory is -5, allowed: 0 bytes or more"),
        ({"host_kv_memory": "9000GiB"}, "host_kv_memory is .* free: lower host_kv_memory"),
        ({"max_model_len": -3}, "max_model_len is -3, allowed: 0"),
        ({"num_guesses": 17}, "num_guesses is 17, allowed: 0 to 16"),
        ({"num_guesses": "4"}, "num_guesses must be a whole number"),
        ({"kv_layout": "pile"}, "kv_layout is 'pile', allowed: block, slot, static"),
        ({"threads": -1}, "threads is -1, allowed: 0 .one a core. to 1024"),
        ({"threads": 1025}, "threads is 1025, allowed: 0 .one a core. to 1024"),
        ({"kernel_level": "mmx"}, "kernel_level is 'mmx', allowed: auto, amx"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is 'int8', allowed: auto"),
        ({"quantisation": "int8"}, "option 'quantisation' is unknown, allowed: device, dtype"),
        ({"url": "localhost:1", "dtype": "auto"}, "'dtype' is unknown, allowed: none beside url"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
        ({"url": "http://localhost:8000"}, "url must be host:port"),
    ],
)
def test_an_llm_that_cannot_be_opened_says_why(
    tiny: Path, options: dict[str, Any], message: str
) -> None:
    before = set(threading.enumerate())
    with pytest.raises(InvalidRequest, match=message):
        LLM(**{"model": tiny, **options})
    assert all_end(set(threading.enumerate()) - before)


def all_end(threads: set[threading.Thread]) -> bool:
    """Tell whether these threads have been told to end: some are at their last lines."""
    for thread in threads:
        thread.join(5)
    return not any(thread.is_alive() for thread in threads)


def test_closing_leaves_no_thread_and_no_process(tiny: Path) -> None:
    before = set(threading.enumerate())
    llm = LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY)
    llm.chat([{"role": "user", "content": "Hi"}], sampled(1))
    llm.close()
    llm.close()
    assert all_end(set(threading.enumerate()) - before)
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        llm.generate("x")


def test_an_llm_that_is_dropped_closes_itself(tiny: Path) -> None:
    before = set(threading.enumerate())
    llm = LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY)
    llm.generate("x", sampled(1))
    del llm
    gc.collect()
    assert all_end(set(threading.enumerate()) - before)


@pytest.mark.parametrize("params", ["hot", 5, {"max_tokens": 3}, [{"max_tokens": 3}]])
def test_what_are_no_params_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(InvalidRequest, match="params must be SamplingParams"):
        llm.generate("x", params)
    with pytest.raises(InvalidRequest, match="params must be SamplingParams"):
        list(llm.stream("x", params))


@pytest.mark.parametrize("dimensions", ["2", 2.5])
def test_dimensions_are_a_whole_number(llm: LLM, dimensions: Any) -> None:
    with pytest.raises(InvalidRequest, match="dimensions must be a whole number"):
        llm.embed("x", dimensions=dimensions)


@pytest.mark.parametrize(
    ("option", "value"), [("threads", "2"), ("max_model_len", "x"), ("model", 5), ("url", 5)]
)
def test_options_of_a_wrong_kind_are_named(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{option} must be") as refused:
        LLM(**{option: value})
    assert refused.value.param == option


def test_an_option_that_is_none_is_left_out(tiny: Path) -> None:
    options: dict[str, Any] = {"quantization": None, "dtype": None, "max_model_len": None}
    LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY, **options).close()


def test_the_collector_may_run_in_the_llms_own_thread(tiny: Path) -> None:
    """As it does for an LLM in a cycle."""
    before = set(threading.enumerate())
    llm = LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY)
    threads = set(threading.enumerate()) - before
    close, loop = llm._close, llm._thread._loop
    loop.call_soon_threadsafe(close)  # what the collector calls
    del llm
    assert all_end(threads)


async def test_a_caller_with_a_loop_of_its_own_may_close(tiny: Path) -> None:
    """As in a notebook."""
    with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY) as llm:
        assert len(llm.generate("x", sampled(1))) == 1


def test_a_stream_left_after_closing_ends_without_a_word(tiny: Path) -> None:
    llm = LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY)
    stream = llm.stream("x", sampled(1, max_tokens=400, ignore_eos=True))
    next(stream)
    llm.close()
    stream.close()


def test_a_forked_process_is_told_and_leaves_the_llm_alone(tiny: Path) -> None:
    code = (
        "import os, sys\nfrom millrace import LLM\n"
        f"llm = LLM({str(tiny)!r})\n"
        "if not os.fork():\n"
        "    try: llm.generate('x')\n"
        "    except RuntimeError as error: print(error, flush=True)\n"
        "    llm.close()\n"
        "    sys.exit()\n"
        "os.wait()\nprint(len(llm.generate('x')))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],  # 3.12: fork with threads
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = "this LLM is of another process; open one after fork\n1\n"
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)


async def test_a_closed_llm_says_so_to_those_who_ask_or_wait(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.async_llm.MAX_IN_FLIGHT", 8)
    llm = await AsyncLLM.open(tiny, kv_cache_memory=KV_CACHE_MEMORY)
    long = sampled(1, max_tokens=400, ignore_eos=True)
    streams = [llm.stream("x", long) for _ in range(8)]
    for stream in streams:
        await anext(stream)
    waiting = asyncio.create_task(llm.generate("waits for room", sampled(1)))
    await llm.close()
    for stream in streams:
        await stream.aclose()
    for late in (waiting, llm.generate("x"), llm.embed("x")):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            await late
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        llm.register_hook("logits", print)


async def test_an_input_that_is_given_up_has_no_embedding(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def given_up(*_: Any) -> AsyncIterator[Piece]:
        yield Piece(0, finish=Finish(reason=ABORTED))

    llm = await AsyncLLM.open(tiny, kv_cache_memory=KV_CACHE_MEMORY)
    monkeypatch.setattr(AsyncLLM, "_submit", given_up)
    with pytest.raises(Cancelled):
        await llm.embed("x")
    await llm.close()


def test_a_hook_that_asks_its_own_model_is_told(tiny: Path, llm: LLM) -> None:
    refused: list[str] = []
    answered: list[list[int]] = []

    def ask(name: str, tensor: Any, layer: int) -> None:
        try:
            one.generate("x", sampled(1))
        except RuntimeError as error:
            refused.append(str(error))
        answered.append(ids(llm.generate("x", sampled(1))[0]))  # another one may be asked

    with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY) as one:
        hook = one.register_hook("logits", ask)
        one.generate("x", sampled(1))
        hook.remove()
        assert one.generate("x", sampled(1))
    assert refused and all("its own LLM" in text for text in refused)
    assert len(answered) == len(refused) and all(answered)


@pytest.mark.parametrize("fail", [lambda *_: 1 / 0, lambda *_: sys.exit("seen enough")])
def test_a_hook_that_fails_costs_no_answer(tiny: Path, fail: Any) -> None:
    """`exit()` would end the thread that computes, and whoever waits for it would wait for ever."""
    with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY) as llm:
        expected = llm.generate("x", sampled(1))
        llm.register_hook("logits", fail)
        assert ids(llm.generate("x", sampled(1))[0]) == ids(expected[0])


@pytest.mark.parametrize(
    ("name", "callback"), [(5, print), ("logits", 5), ("nosuch_*", print), ("", print)]
)
def test_what_cannot_be_a_hook_is_refused(llm: LLM, name: Any, callback: Any) -> None:
    with pytest.raises(InvalidRequest, match="a hook's"):
        llm.register_hook(name, callback)


def test_importing_millrace_is_light() -> None:
    code = "import millrace, sys; sys.exit('numpy' in sys.modules or 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_script_that_never_closes_ends_without_a_word(tiny: Path) -> None:
    code = f"from millrace import LLM\nllm = LLM({str(tiny)!r})\nprint(len(llm.generate('x')))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


async def test_async(tiny: Path) -> None:
    async with await AsyncLLM.open(tiny, kv_cache_memory=KV_CACHE_MEMORY) as llm:
        outputs = await asyncio.gather(*(llm.generate(f"p{i}", sampled(i)) for i in range(4)))
        assert len({tuple(ids(one)) for (one,) in outputs}) == 4
        stream = llm.stream("x", sampled(1, max_tokens=400, ignore_eos=True), request_id="mine")
        deltas = [await anext(stream)]
        assert await llm.cancel("mine") == 1
        deltas += [delta async for delta in stream]
        assert deltas[-1].outputs[0].finish_reason == "abort"
        for wrong in (5, "", "x" * 129, "\udc80"):
            with pytest.raises(InvalidRequest, match="request_id"):
                await anext(llm.stream("x", request_id=wrong))  # type: ignore[arg-type]


async def test_who_gives_up_an_open_does_not_wait_for_the_load(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def load(*given: Any) -> None:
        begun.set()
        may_end.wait(5)
        has_ended.set()

    monkeypatch.setattr(in_process, "_load", load)
    opening = asyncio.create_task(AsyncLLM.open(tiny))
    await asyncio.to_thread(begun.wait)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not has_ended.is_set()
    may_end.set()


def test_generate_on_the_command_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", str(tiny), "--max-tokens", "8", "--kv-cache-memory", KV_CACHE_MEMORY]
    assert main(["generate", "Hello", *options, "--seed", "1"]) == 0
    with LLM(tiny, kv_cache_memory=KV_CACHE_MEMORY) as llm:
        (expected,) = llm.generate("Hello", SamplingParams(max_tokens=8, seed=1))
    assert capsys.readouterr().out == text(expected) + "\n"
    assert main(["generate", "x", "--temperature", "9", *options]) == 1
    assert capsys.readouterr().err == "millrace: temperature must be between 0 and 2, got 9.0\n"


# ── a user's own folder ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def own(model_folder: Path) -> Iterator[LLM]:
    with LLM(model_folder, kv_cache_memory="512MiB") as opened:
        yield opened


@pytest.mark.model
@pytest.mark.timeout(1800)
def test_own_model_batch_is_alone(own: LLM) -> None:
    prompts = ["The capital of France is", "def fibonacci(n):", "Once upon a time", "1 + 1 ="]
    params = [sampled(i, max_tokens=24, temperature=0.8 * (i % 2)) for i in range(4)]
    together = own.generate(prompts, params)
    for prompt, one, crowd in zip(prompts, params, together, strict=True):
        (alone,) = own.generate(prompt, one)
        assert ids(alone) == ids(crowd)
        assert "".join(text(delta) for delta in own.stream(prompt, one)) == text(crowd)


@pytest.mark.model
@pytest.mark.timeout(1800)
def test_own_model_sessions_do_not_mix(own: LLM) -> None:
    """Three conversations of three turns, at once and one after the other."""

    def talk(topics: list[str]) -> list[list[str]]:
        histories: list[list[dict[str, str]]] = [[] for _ in topics]
        for question in ("Tell me about {}.", "Why?", "Say it in one word."):
            for history, topic in zip(histories, topics, strict=True):
                history.append({"role": "user", "content": question.format(topic)})
            answers = own.chat(histories, sampled(1, max_tokens=24, temperature=0))
            for history, answer in zip(histories, answers, strict=True):
                history.append({"role": "assistant", "content": text(answer)})
        return [[m["content"] for m in h if m["role"] == "assistant"] for h in histories]

    topics = ["Rome", "rain", "numbers"]
    assert talk(topics) == [talk([topic])[0] for topic in topics]


async def test_two_requests_of_one_id_have_their_own_prompts(tiny: Path) -> None:
    async with await AsyncLLM.open(tiny, kv_cache_memory=KV_CACHE_MEMORY) as llm:

        async def lengths(prompt: str) -> set[tuple[int, int]]:
            deltas = llm.stream(prompt, sampled(1, max_tokens=9), request_id="same")
            return {(len(d.prompt_token_ids), d.num_prompt_tokens) async for d in deltas}

        (short,), (long,) = await asyncio.gather(lengths("abc"), lengths("hello world"))
        assert 0 < short[0] == short[1] < long[0] == long[1]
