"""The benchmarks of the CPU kernels run, and say what their readers look for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import ceilings as machine
from bench import cpu
from bench.neighbours import fair_share
from bench.random_model import write_random_model
from bench.random_tokenizer import write_random_tokenizer
from bench.served import step_s
from bench.sse_client import Outcome
from tokenizer_service.model_folder import read_model_folder
from tokenizer_service.tokenizer import load_tokenizer
from worker.build import load_model


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "MULTIPLY_S", 0.0)


def output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: Any, *argv: str
) -> list[dict[str, Any]]:
    monkeypatch.setattr("sys.argv", ["bench", *argv, "--json"])
    module.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_whole_step(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    quantization: str,
) -> None:
    rows = output(
        capsys, monkeypatch, cpu, "--shape", "tiny", "--folder", str(tmp_path), "--batch", "1,3",
        "--quantization", quantization, "--steps", "9", "--prompt", "20", "--context", "10",
    )  # fmt: skip
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        for name in ("decode_tokens_per_s", "read_ceiling_gb_per_s", "fraction_of_floor"):
            assert row[name] >= 0
        assert row["prefill_tokens_per_s"] > 0 and row["decode_tokens_per_s"] > 0
        assert row["read_ceiling_gb_per_s"] >= row["read_beside_gb_per_s"] > 0
        assert row["fraction_beside"] > 0


@pytest.mark.timeout(90)
def test_through_all_tiers_and_beside_a_neighbour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = output(
        capsys, monkeypatch, cpu, "--shape", "tiny", "--folder", str(tmp_path), "--batch", "2",
        "--steps", "4", "--prompt", "0", "--context", "10", "--server", "--neighbours", "1",
    )  # fmt: skip
    assert row["served_over_offline"] > 0 and row["served_tokens_per_s"] > 0
    assert row["neighbours"] == 1 and row["beside_over_alone"] > 0


def test_the_pace_of_streams_is_that_of_their_common_time() -> None:
    early = Outcome(0.0, arrivals=[1.0, 5.0, 6.0, 7.0, 7.001])  # waits while the other one starts
    late = Outcome(0.0, arrivals=[5.0, 6.0, 7.0, 8.0])
    assert step_s([early, late], 4) == pytest.approx(1.0)


def test_streams_that_do_not_meet_are_paced_by_themselves() -> None:
    one, other = Outcome(0.0, arrivals=[1.0, 2.0, 3.0]), Outcome(0.0, arrivals=[4.0, 7.0, 10.0])
    assert step_s([one, other], 3) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("threads", "count", "cores", "share"),
    [(2, 0, 2, 1.0), (2, 1, 2, 2 / 3), (2, 2, 2, 0.5), (2, 2, 4, 1.0), (1, 1, 2, 1.0)],
)
def test_a_fair_share_of_the_cores(threads: int, count: int, cores: int, share: float) -> None:
    assert fair_share(threads, count, cores) == pytest.approx(share)


def test_every_id_of_a_random_tokenizer_has_a_text_of_its_own(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path, "tiny")
    write_random_tokenizer(folder)
    tokenizer = load_tokenizer(read_model_folder(folder))
    assert tokenizer is not None and tokenizer.size == 512
    detokenizer = tokenizer.detokenizer(keep_special=True)
    texts = [detokenizer.step(index) for index in range(256, 512)]
    assert len(set(texts)) == 256 and all(texts)


def test_a_random_model_is_a_model(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path, "tiny")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert load_model(write_random_model(tmp_path, "tiny"), num_threads=1).config.num_layers == 2
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_no_two_tensors_of_a_random_model_are_equal(tmp_path: Path) -> None:
    raw = (write_random_model(tmp_path, "tiny") / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    matrices = [t["data_offsets"] for name, t in header.items() if len(t["shape"]) == 2]
    contents = {raw[begin + first : begin + last] for first, last in matrices}
    assert len(contents) == len(matrices) > 10
