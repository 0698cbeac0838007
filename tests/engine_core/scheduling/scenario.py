"""The words of the golden stories: each directive acts on one scheduler and returns what it saw."""

from __future__ import annotations

import shlex
from array import array
from collections import deque

from engine_core.scheduling.bounds import Bounds
from engine_core.scheduling.request import FinishReason
from engine_core.scheduling.scheduler import Scheduler
from engine_core.scheduling.sequence import Sequence, TokenEvent
from engine_core.tenant_file import parse
from protos.worker import (
    Add,
    Bulk,
    CompileGrammar,
    DropKeys,
    Errand,
    ErrandDone,
    ExecutePlan,
    Limits,
    LoadBlocks,
    Logprobs,
    SequenceFault,
    StepResult,
    StoreBlocks,
)

Words = dict[str, str]


class Scenario:
    """One scheduler, a clock that moves when told, and a worker that draws what it is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limits = ""
        self.in_flight: deque[ExecutePlan] = deque()
        self.ends: dict[int, int] = {}  # seq_id → planned tokens behind the known ones
        self.pool({})

    def run(self, line: str) -> str:
        name, *rest = shlex.split(line)
        words = {k: v for k, _, v in (word.partition("=") for word in rest)}
        lines = getattr(self, name)(words)
        problem = self.scheduler.check()
        return "\n".join([*lines, *([f"LEAK {problem}"] if problem else [])]) or "ok"

    def limit(self, words: Words) -> list[str]:
        """What the tenants of the next pool may have, one a word: `a=seqs=2,blocks=4`."""
        lines = (f"{name} {keys.replace(',', ' ')}" for name, keys in words.items())
        self.limits = "\n".join(lines)
        return []

    def pool(self, words: Words) -> list[str]:
        guesses = ids(words.get("guess", ""))
        self.in_flight.clear()
        layout = words.get("layout", "block")
        self.scheduler = Scheduler(
            num_blocks=int(words.get("blocks", 16)),
            block_size=1 if layout == "slot" else int(words.get("block_size", 4)),
            vocab_size=1000,
            max_model_len=int(words.get("len", 1024)),
            bounds=Bounds(
                int(words.get("seqs", 8)),
                int(words.get("budget", 64)),
                int(words.get("waiting", 8)),
                parse(self.limits),
                int(words.get("host", 0)),
            ),
            prefix_key=b"m" if words.get("cache") == "on" else None,
            propose=(lambda tokens, most: guesses[:most]) if guesses else None,
            layout=layout,
        )
        return []

    def add(self, words: Words) -> list[str]:
        prompt = array("I", range(1, int(words.get("prompt", 4)) + 1))
        resumed = tuple(array("I", ids(one)).tobytes() for one in words.get("resumed", "").split())
        limits = Limits(
            max_tokens=int(words.get("max", 100)),
            min_tokens=int(words.get("min", 0)),
            stop_token_ids=ids(words.get("stop", "")),
            n=int(words.get("n", 1)),
            priority=int(words.get("priority", 0)),
            tenant=words.get("tenant", ""),
            cache_salt=words.get("salt", "").encode(),
            deadline_s=float(words["deadline"]) if "deadline" in words else None,
            n_keep=int(words["keep"]) if "keep" in words else None,
            rotate_kv="rotate" in words,
            has_grammar="grammar" in words,
            kind=words.get("kind", "generate"),
            pooling=words.get("pooling", "last"),
            prompt_logprobs=int(words["prompt_logprobs"]) if "prompt_logprobs" in words else None,
            report_progress="progress" in words,
            waited_s=float(words.get("waited", 0)),
        )
        add = Add(
            int(words.get("session", 1)), int(words["slot"]), "r", prompt.tobytes(), limits,
            words.get("grammar", "").encode(), resumed, int(words.get("attempt", 0)),
        )  # fmt: skip
        self.scheduler.add(add, self.now)
        return self.events()

    def abort(self, words: Words) -> list[str]:
        self.scheduler.abort(1, int(words["slot"]), self.now)
        return self.events()

    def stop_at(self, words: Words) -> list[str]:
        self.scheduler.stop_at(1, int(words["slot"]), int(words["tokens"]), self.now)
        return self.events()

    def pause(self, words: Words) -> list[str]:
        self.scheduler.pause(1, int(words["slot"]), self.now)
        return self.events()

    def resume(self, words: Words) -> list[str]:
        self.scheduler.resume(1, int(words["slot"]))
        return self.events()

    def close(self, words: Words) -> list[str]:
        self.scheduler.close_session(int(words["session"]), self.now)
        return self.events()

    def reset(self, _: Words) -> list[str]:
        """Empty the cache."""
        return [f"{self.scheduler.reset_cache()} pages forgotten"]

    def clock(self, words: Words) -> list[str]:
        self.now = float(words["now"])
        return []

    def plan(self, _: Words) -> list[str]:
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            return [*self.events(), "nothing to compute"]
        self.in_flight.append(plan)
        return [*self.events(), *told(plan)]

    def apply(self, words: Words) -> list[str]:
        """Draw 100 for each row that reaches its end, or what `seq=ids` says; `seq=!` fails."""
        plan = self.in_flight.popleft()
        rows = [flight for flight in self.scheduler._in_flight if flight.step_id == plan.step_id]
        drawn = [row.seq_id for row in rows[0].rows if words.get(str(row.seq_id)) != "!"]
        columns = [ids(words.get(str(seq_id), "100")) for seq_id in drawn]
        tokens = tuple(token_id for column in columns for token_id in column)
        faults = tuple(SequenceFault(int(k), "bad row") for k, v in words.items() if v == "!")
        embeds = [row.seq_id for row in rows[0].embeds if words.get(str(row.seq_id)) != "!"]
        bulks = tuple(Bulk(seq_id, embedding=b"\0" * 8) for seq_id in embeds)
        bulks += tuple(
            Bulk(row.seq_id, prompt_logprobs=logprobs_until(row, end))
            for row, end in rows[0].chunks
            if row.owes_prompt_logprobs and words.get(str(row.seq_id)) not in ("!", "?")
        )
        result = StepResult(
            plan.step_id, tuple(drawn), tuple(map(len, columns)), tokens, faults=faults,
            bulks=bulks,
        )  # fmt: skip
        return [told_event(event) for event in self.scheduler.apply(result, self.now)]

    def errands(self, _: Words) -> list[str]:
        """Show what the workers are to do before the next plan."""
        return [told_errand(errand) for errand in self.scheduler.take_errands()]

    def answer(self, words: Words) -> list[str]:
        done = ErrandDone(
            0, int(words["errand"]), words.get("error", ""), int(words.get("good", 0))
        )
        self.scheduler.errand_done(done, self.now)
        return self.events()

    def step(self, words: Words) -> list[str]:
        lines = self.plan({})
        return lines + (self.apply(words) if self.in_flight else [])

    def state(self, _: Words) -> list[str]:
        scheduler = self.scheduler
        idle = f" cached={scheduler.pool.num_idle}" if scheduler.pool.num_idle else ""
        paused = f" paused={scheduler.num_paused}" if scheduler.num_paused else ""
        return [
            f"free={scheduler.pool.num_free}{idle} running={scheduler.num_running} "
            f"waiting={scheduler.num_waiting}{paused}"
        ]

    def events(self) -> list[str]:
        return [told_event(event) for event in self.scheduler.take_events()]


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def logprobs_until(row: Sequence, end: int) -> tuple[Logprobs, ...]:
    """Return what the first `end` positions of a prompt tell, each of the token after it."""
    return tuple(Logprobs(row.seq_id, i, (row.tokens[i],), (-1.0,)) for i in range(1, end + 1))


def told(plan: ExecutePlan) -> list[str]:
    lines = [f"plan {plan.step_id}" + (f" drops {[*plan.finished]}" if plan.finished else "")]
    for start in plan.starts:
        known = len(start.token_ids) // 4
        end = start.num_computed + start.num_tokens
        lines.append(
            f"  start seq {start.seq_id} choice {start.choice}: "
            f"{start.num_computed}..{end} of {known}, blocks {[*start.block_ids]}"
            + (f", pooling {start.pooling}" if start.pooling else "")
        )
    lines += [f"  copy block {copy.source} to {copy.target}" for copy in plan.copies]
    for shift in plan.shifts:
        cells = [*array("I", shift.cells)]
        lines.append(f"  turn seq {shift.seq_id} by {shift.delta}: cells {cells}")
    for row in plan.steps:
        new = f", new blocks {[*row.new_block_ids]}" if row.new_block_ids else ""
        guesses = f", guesses {[*row.draft_token_ids]}" if row.draft_token_ids else ""
        lines.append(f"  seq {row.seq_id}: {row.num_tokens} tokens{new}{guesses}")
    return lines


def told_errand(errand: Errand | DropKeys) -> str:
    match errand:
        case CompileGrammar():
            return f"errand {errand.errand_id}: compile {errand.sampling.decode()}"
        case DropKeys():
            return f"drop {len(errand.keys)} keys"
        case StoreBlocks():
            return f"errand {errand.errand_id}: store blocks {[*errand.block_ids]}"
        case LoadBlocks():
            return f"errand {errand.errand_id}: load blocks {[*errand.block_ids]}"


def told_bulk(bulk: Bulk) -> str:
    if bulk.prompt_logprobs:
        return f"logprobs of the prompt up to {bulk.prompt_logprobs[-1].index}"
    return f"embedding of {len(bulk.embedding)} bytes"


def told_event(event: TokenEvent) -> str:
    parts = [f"slot {event.slot}:"]
    if event.token_ids:
        parts.append(f"#{event.offset} = {[*event.token_ids]}")
    parts += [told_bulk(bulk) for bulk in event.bulks]
    if (told := event.progress) is not None:
        parts.append(f"{told.num_computed} of {told.num_total} computed, {told.num_cached} cached")
    if row := event.finish:
        parts.append(f"{FinishReason(row.reason).name} after {row.num_output_tokens}")
        if row.stop_token_id is not None:
            parts.append(f"by {row.stop_token_id}")
        if row.error_kind:
            where = " ".join(filter(None, (row.error_kind, row.error_code, row.error_param)))
            parts.append(f"{where}: {row.error_message}")
        if row.num_cached_tokens:
            parts.append(f"{row.num_cached_tokens} of {row.num_prompt_tokens} cached")
        if row.num_preemptions:
            parts.append(f"preempted {row.num_preemptions} times")
        if row.retry_after_ms:
            parts.append(f"(retry after {row.retry_after_ms} ms)")
    return " ".join(parts)
