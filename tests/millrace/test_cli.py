"""The command line: every mistake is one clear line."""

from __future__ import annotations

import argparse
import errno
import http.server
import importlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from millrace.cli import COMMANDS, main
from millrace.errors import CommandError
from millrace.http import Server
from millrace.placement import Replica
from millrace.processes import ProcessId, free_port, identify
from millrace.project import HOME, add_arguments, check_model_folder, stop_command
from millrace.replica_process import ReplicaProcess, from_the_root
from millrace.runner import Plan
from millrace.state import ReplicaState, RunState, StateFolder


def test_without_a_command_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "0.1.0\n"


def test_a_ctrl_c_while_a_command_is_imported_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupt)
    assert main(["generate", "x"]) == 130


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_package_that_is_not_installed_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(path: str) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert main([command]) == 1
    told = f"millrace {command}: No module named 'numpy': pip install 'millrace[all]'\n"
    assert capsys.readouterr().err == told


def test_what_a_terminal_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    main([])
    sys.stdout.write("é")
    sys.stdout.flush()
    assert shown.getvalue().endswith(b"?")


@pytest.mark.parametrize("url", ["http://[::1", "http://h:abc", "h:80", "http://127.0.0.1:1/"])
def test_an_address_that_is_none_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--url", url]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<html>", "answers what is no JSON"),
        ("[]", "answers no list of models"),
        ('{"data": [{}]}', "answers no list of models"),
        ('{"data": []}', "serves no model yet"),
    ],
)
def test_a_server_without_models_is_one_line(
    body: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/models").write_text(body)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{there.server_port}"
        assert [main([name, "--url", url]) for name in ("models", "chat")] == [1, 1]
        there.shutdown()
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("millrace: ")]
    assert len(lines) == 2 and all(told in line for line in lines)


@pytest.mark.parametrize("command", ["models", "chat", "bench"])
def test_a_terminal_obeys_no_word_of_a_server(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = r'HTTP/1.1 400 No{}{}{{"error": {{"message": "a\u001b]0;mine\u0007"}}}}'
    with answering(reply.format("\r\n", "\r\n")) as server:
        assert main([command, "--url", server.url]) != 0
    assert capsys.readouterr().err.endswith("a]0;mine\n")


def test_a_terminal_obeys_no_name_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    reply = r'HTTP/1.1 200 OK{}{}{{"data": [{{"id": "a\u001b]0;mine\u0007", '
    reply += '"max_model_len": 8}}, {{"id": "b"}}]}}'
    with answering(reply.format("\r\n", "\r\n")) as server:
        assert main(["models", "--url", server.url]) == 0
    assert capsys.readouterr().out == "a]0;mine  8 tokens\nb\n"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "warm"])
def test_what_is_no_amount_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = (
        ["chat", "--temperature"],
        ["generate", "x", "--temperature"],
        ["up", "--ready-timeout"],
    )
    for *words, option in known:
        with pytest.raises(SystemExit):
            main([*words, f"{option}={value}"])
        assert f"{value!r} is no number of 0 or more" in capsys.readouterr().err


def test_what_is_no_text_is_not_sent() -> None:
    with pytest.raises(CommandError, match="is not UTF-8 text"):
        next(Server("http://127.0.0.1:1", None).events("/", {"model": "\udcff"}))


def test_a_key_goes_out_in_the_bytes_that_were_typed() -> None:
    """Its digest in the key file is that of these bytes."""
    heard: list[bytes] = []

    class Door(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"].encode("latin-1"))
            self.send_error(401)

    with http.server.HTTPServer(("127.0.0.1", 0), Door) as door:
        thread = threading.Thread(target=door.handle_request)
        thread.start()
        with pytest.raises(CommandError, match="401"):
            Server(f"http://127.0.0.1:{door.server_port}", "sésame\udcff").models()
        thread.join()
    assert heard == ["Bearer sésame".encode() + b"\xff"]


@contextmanager
def answering(reply: str) -> Iterator[Server]:
    """Answer one request with these words."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            peer, _ = door.accept()
            with peer:
                peer.recv(2**16)
                peer.sendall(reply.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield Server(f"http://127.0.0.1:{door.getsockname()[1]}", None)
        thread.join()


@pytest.mark.parametrize("rest", ["", 'data: {"b"'])
@pytest.mark.parametrize("length", ["", "Content-Length: 999\r\n"])
def test_an_answer_that_breaks_off_is_none(length: str, rest: str) -> None:
    with answering(f'HTTP/1.1 200 OK\r\n{length}\r\ndata: {{"a": 1}}\n\n{rest}') as server:
        events = server.events("/v1/x", {})
        assert next(events) == {"a": 1}
        with pytest.raises(CommandError, match="/v1/x: the connection ended before the answer"):
            next(events)


@pytest.mark.parametrize("event", ["no json", "[1]"])
def test_an_event_of_another_server_is_named(event: str) -> None:
    told = re.escape(f"/v1/x: no event of ours: {event!r}: ")
    with answering(f"HTTP/1.1 200 OK\r\n\r\ndata: {event}\n\n") as server:
        with pytest.raises(CommandError, match=told):
            next(server.events("/v1/x", {}))


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["uq"]) == 2
    assert capsys.readouterr().err.startswith("millrace: unknown command 'uq'\n")


@pytest.mark.parametrize("name", [n for n, (path, _) in COMMANDS.items() if "bench" not in path])
def test_every_command_describes_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main([name, "--help"])
    assert exit.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: millrace {name} ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "/nowhere"], "no model folder at /nowhere"),
        (["--model", "{tmp}"], "{tmp} is not a model folder: it has no config.json"),
        (["--model", "{tmp}/file"], "{tmp}/file is a file: a model is a folder, of safetensors"),
        (
            ["--model", "{tmp}/adapter"],
            "{tmp}/adapter holds an adapter alone (adapter_config.json)",
        ),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size above 1 does not exist yet"),
        pytest.param(
            ["--device", "cuda"],
            "--device cuda needs CuPy: pip install",
            marks=pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is here"),
        ),
        (
            ["--model", "{tmp}/model", "--api-key-file", "/nowhere/keys"],
            "/nowhere/keys does not exist",
        ),
        (["--file", "{tmp}/no.yml"], "{tmp}/no.yml: [Errno 2]"),
        (["--model", "{tmp}/model", "--host", "9.9.9.9"], "--host 9.9.9.9 is no address of"),
        (["--served-model-name", "a\udcff"], "SERVED_MODEL_NAME is 'a\\udcff', which is no UTF-8"),
        (["--model", "{tmp}/m\udcff"], "MODEL is '{tmp}/m\\udcff', which is no UTF-8: rename it"),
        (["--host", "::1"], "--host ::1 is no IPv4 address, such as 127.0.0.1 or 0.0.0.0"),
        (["--host", "nonsense"], "--host nonsense is no IPv4 address"),
        (["--model", "{tmp}/loop"], "{tmp}/loop cannot be read: Too many levels of symbolic links"),
        (["--state", "{tmp}/file/x"], "{tmp}/file/x cannot be written: Not a directory; give"),
        (["--max-model-len", "99999"], "max_model_len is 99999, the model has 1024 positions ("),
        (["--model", "{tmp}/model", "--max-model-len", "9"], "{tmp}/model/config.json: is not"),
    ],
)
def test_up_refuses_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model", "m\udcff"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    filled = [option.replace("{tmp}", str(tmp_path)) for option in options]
    assert main(["up", "--state", str(tmp_path / "state"), *filled]) == 1
    said = capsys.readouterr().err
    assert said.startswith("millrace: " + message.replace("{tmp}", str(tmp_path))), said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MILLRACE_ENGINE_TENSOR_PARALLEL_SIZE", "2", "--tensor-parallel-size above 1 does not"),
        ("TENSOR_PARALLEL_SIZE", "2", "--tensor-parallel-size above 1 does not"),
        ("WORKERS", "0", "there is no worker: GATEWAYS, TOKENIZERS or WORKERS is 0"),
        ("DTYPE", "float9", "settings: worker: dtype is 'float9', expected: auto, "),
        ("MILLRACE_ENGINE_MAX_WAITING", "-4", "settings: engine: Expected `int` >= 1"),
        ("MILLRACE_GATEWAY_COLOUR", "red", "settings: gateway: unknown settings ['colour']"),
        ("MILLRACE_GATEWAY_API_KEY_FILE", "nowhere", "settings: gateway: …api_key_file: "),
        ("MILLRACE_ENGINE_TENANT_LIMITS", "nowhere", "settings: engine: …tenant_limits: "),
        ("MILLRACE_ENGINE_MAX_NUM_BATCHED_TOKENS", "4",
         "settings: engine: …must be at least max_num_seqs (256)"),
        ("MILLRACE_WORKER_HOST_KV_MEMORY", "4 lakes",
         "settings: worker: …host_kv_memory is '4 lakes'"),
    ],
)  # fmt: skip
def test_up_refuses_an_environment_that_a_tier_would_not_start_with(
    name: str, value: str, message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(name, value)
    assert main(["up", "--state", str(tmp_path / "state"), "--port", str(free_port())]) == 1
    told, (begin, _, rest) = capsys.readouterr(), message.partition("…")
    assert told.err.startswith(f"millrace: {begin}") and rest in told.err and not told.out


@pytest.mark.parametrize(
    "option",
    [
        ["--workers", "0"],
        ["--workers", "x"],
        ["--device", "tpu"],
        ["--port", "99999"],
        ["--served-model-name", ""],
        ["--served-model-name", " ,"],
    ],  # fmt: skip
)
def test_up_refuses_a_wrong_value(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", *option])
    assert f"argument {option[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["logs", "status", "chat"])
def test_commands_that_need_a_stack_say_how_to_start_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--state", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("start it with: millrace up\n")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"reasons":["a loads","b is gone"],"engines":[{"ready":false}]}', "a loads; b is gone"),
        (b"upstream is down", "/ready answers 503"),
    ],
)
def test_status_tells_the_reasons_alone(
    answer: bytes,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(url: str) -> tuple[int, bytes]:
        return 503, answer

    runner = identify(os.getpid())
    assert runner is not None
    state = RunState("run", runner, "http://here", "demo", ready=True, replicas=[])
    monkeypatch.setattr("millrace.commands.status.get", ask)
    monkeypatch.setattr("millrace.commands.status.running", lambda _: state)
    assert main(["status", "--state", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"http://here  demo  not ready: {said}  up ")


def test_down_takes_no_port_of_another_address_for_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a second stack has the same port on another address of this machine."""
    with socket.socket() as other, subprocess.Popen(["sleep", "60"]) as process:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port, runner = other.getsockname()[1], identify(process.pid)
        assert runner is not None
        door = ReplicaState("door-1", "door", None, {8000: port}, num_restarts=0, healthy=True)
        (tmp_path / "logs").mkdir()
        StateFolder(tmp_path).write(
            RunState("none", runner, f"http://127.0.0.2:{port}", "demo", True, [door])
        )
        assert main(["down", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "millrace: stopped\n"


@pytest.mark.parametrize("name", ["up", "down", "status", "chat"])
def test_a_runner_out_of_sight_is_told_and_let_be(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pid is of a container, or of another machine that shares the folder."""
    state = StateFolder(tmp_path)
    lock = state.lock()
    assert lock is not None
    state.write(RunState("run", ProcessId(1, 1), "http://there", "demo", ready=True, replicas=[]))
    try:
        assert main([name, "--state", str(tmp_path)]) == 1
    finally:
        os.close(lock)
    assert "http://there (pid 1) is run where it cannot be seen" in capsys.readouterr().err
    assert state.read() is not None


@pytest.mark.parametrize("name", ["up", "down", "logs", "status", "chat"])
def test_a_compose_file_that_is_not_there_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--file", f"{tmp_path}/no.yml"]) == 1
    assert capsys.readouterr().err.startswith(f"millrace: --file {tmp_path}/no.yml is no file; ")


def test_a_run_whose_file_is_gone_is_named_by_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["down", "--file", f"{tmp_path}/no.yml", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "millrace: nothing is running\n"


def up_and_its_parser() -> tuple[Any, argparse.ArgumentParser]:
    up = importlib.import_module(COMMANDS["up"][0])
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return up, parser


def test_every_option_of_up_reaches_a_variable_of_the_file() -> None:
    up, parser = up_and_its_parser()
    text = (HOME / "docker-compose.yml").read_text()
    for option, variable in up.VARIABLES.items():
        assert f"--{option.replace('_', '-')}" in parser.format_help()
        assert f"${{{variable}" in text


def test_chosen_variables_name_the_model(tmp_path: Path) -> None:
    up, parser = up_and_its_parser()
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").touch()
    variables = up.chosen_variables(parser.parse_args(["--model", str(folder), "--dtype", "bf16"]))
    assert variables["MODEL"] == str(folder)
    assert variables["SERVED_MODEL_NAME"] == "qwen"
    assert variables["DTYPE"] == "bfloat16"


def test_a_name_in_the_settings_file_and_keys_there_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    up, parser = up_and_its_parser()
    told = "tokenizer: {served_model_name: mine}\ngateway: {api_key_file: keys, port: null}\n"
    (tmp_path / "m.yaml").write_text(told)
    monkeypatch.setenv("MILLRACE_CONFIG", str(tmp_path / "m.yaml"))
    monkeypatch.setenv("MILLRACE_GATEWAY_API_KEY_FILE", "")
    variables = up.chosen_variables(parser.parse_args([]))
    assert variables["SERVED_MODEL_NAME"] == "mine"
    assert up.asked(variables)["MILLRACE_GATEWAY_API_KEY_FILE"] == str(tmp_path / "keys")
    assert "MILLRACE_GATEWAY_PORT" not in up.asked(variables)


@pytest.mark.parametrize("name", ["MILLRACE_ENGINE_MAX_MODEL_LEN_FILE", "MILLRACE_CONFIG"])
def test_a_length_that_the_model_lacks_is_refused_wherever_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    in_config = name == "MILLRACE_CONFIG"
    (tmp_path / "told").write_text("engine: {max_model_len: 99999}" if in_config else "99999\n")
    monkeypatch.setenv(name, str(tmp_path / "told"))
    assert main(["up", "--state", str(tmp_path), "--port", str(free_port())]) == 1
    assert "max_model_len is 99999, the model has 1024 positions" in capsys.readouterr().err


def test_a_name_in_a_file_of_its_own_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    up, parser = up_and_its_parser()
    (tmp_path / "name").write_text("mine\n")
    monkeypatch.setenv("MILLRACE_TOKENIZER_SERVED_MODEL_NAME_FILE", str(tmp_path / "name"))
    assert up.chosen_variables(parser.parse_args([]))["SERVED_MODEL_NAME"] == "mine"


def test_variables_of_no_service_are_told() -> None:
    up = importlib.import_module(COMMANDS["up"][0])
    wrong = ["MILLRACE_ENGIN_MAX_NUM_SEQS", "MILLRACE_PORT", "MILLRACE_CONFIGS"]
    right = ["MILLRACE_CONFIG", "MILLRACE_TAG", "MILLRACE_ENGINE_MAX_NUM_SEQS", "PORT"]
    assert up.unknown_names([*wrong, *right]) == wrong


def test_paths_in_the_environment_are_those_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"MILLRACE_CONFIG": "m.yaml", "MILLRACE_GATEWAY_API_KEY_FILE": "/keys"}
    none = {"MILLRACE_WORKER_MODEL_FILE": "", "MILLRACE_WORKER_MODEL": "m", "KEY_FILE": "mine"}
    found = from_the_root({**given, **none})
    assert found == {**given, "MILLRACE_CONFIG": f"{tmp_path}/m.yaml"}


@pytest.mark.parametrize("name", ["millrace-demo", "Bob's model", 'a"b\\c', "模型"])
def test_what_the_banner_shows_can_be_pasted(name: str) -> None:
    """A quote in a folder's name ended the string of the shell, or of JSON."""
    up = importlib.import_module(COMMANDS["up"][0])
    plan = Plan(replicas=[], root=HOME, url="http://here:1", model=name, ready_timeout_s=1)
    shown = up.banner(plan, "Ctrl-C", None).partition("    curl")[2].partition("    export")[0]
    words = shlex.split(shown)
    assert json.loads(words[words.index("-d") + 1])["model"] == name


def test_the_banner_shows_no_digest_as_a_key(tmp_path: Path) -> None:
    up = importlib.import_module(COMMANDS["up"][0])
    plan = Plan(replicas=[], root=tmp_path, url="http://here:1", model="m", ready_timeout_s=1)
    assert "OPENAI_API_KEY=none\n\n  Stop" in up.banner(plan, "Ctrl-C", key=None)
    public = replace(plan, is_public=True)
    assert "OPEN to all" in up.banner(public, "Ctrl-C", key=None)
    for closed in (up.banner(plan, "Ctrl-C", None), up.banner(public, "Ctrl-C", "/my/keys")):
        assert "OPEN to" not in closed
    asked = up.banner(plan, "Ctrl-C", key="/my/keys")
    assert "Stop it with millrace down (or: make down)." in up.banner(plan, "millrace down", None)
    assert '-H "Authorization: Bearer $KEY"' in asked and "OPENAI_API_KEY=$KEY" in asked
    assert "KEY is one whose sha256 stands in /my/keys" in asked


@pytest.mark.parametrize(("host", "is_public"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_plan_knows_whether_others_reach_its_api(
    host: str, is_public: bool, tmp_path: Path
) -> None:
    """A second port that was published to this machine alone hid that the first was open to all."""
    up, parser = up_and_its_parser()
    api, metrics = free_port(), free_port()
    file = tmp_path / "compose.yml"
    file.write_text(
        "services: {door: {command: [x], environment: {A_PORT: '1', B_PORT: '2'}, "
        f"ports: ['{host}:{api}:1', '127.0.0.1:{metrics}:2']}}}}"
    )
    plan = up.make_plan(parser.parse_args([]), file, {"SERVED_MODEL_NAME": "m"})
    assert (plan.url, plan.is_public) == (f"http://127.0.0.1:{api}", is_public)
    (replica,) = plan.replicas
    assert replica.ports == {1: api, 2: metrics}


def test_a_folder_of_others_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(CommandError, match="cannot be read: Permission denied"):
        check_model_folder(tmp_path)


@pytest.mark.parametrize("command", [["status", "--file"], ["logs", "--state"]])
def test_files_of_others_are_one_line(
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is not known what is in a folder of others, and no log of theirs can be read."""

    def deny(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", deny)
    monkeypatch.setattr(Path, "exists", deny)
    assert main([*command, str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"millrace: {tmp_path}") and said.endswith(": Permission denied\n")


def test_what_stops_a_stack_names_its_place(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert stop_command(parser.parse_args([])) == "millrace down"
    elsewhere = parser.parse_args(["--state", f"{tmp_path}/a b"])
    assert stop_command(elsewhere) == f"millrace down --state '{tmp_path}/a b'"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("MILLRACE_GATEWAY_PORT", ""),
        ("MILLRACE_CONFIG", "gateway: {port: 9000}\n"),
        ("MILLRACE_GATEWAY_PORT_FILE", "9000\n"),
    ],
)
def test_up_refuses_a_setting_that_it_would_hide(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
) -> None:
    (tmp_path / "m.yaml").write_text(content)
    monkeypatch.setenv(name, str(tmp_path / "m.yaml") if content else "9000")
    assert main(["up", "--state", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("millrace: MILLRACE_GATEWAY_PORT is '9000' in the environment or the")
    assert "and '8000' by the compose" in said


def test_what_the_file_leaves_empty_the_environment_may_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MILLRACE_GATEWAY_API_KEY_FILE", "/keys")
    monkeypatch.setenv("MILLRACE_WORKER_DTYPE", "float32")
    show = "import os; print(*(os.environ[f'MILLRACE_{n}'] for n in ('GATEWAY_API_KEY_FILE',"
    show += "'WORKER_DTYPE')))"
    replica = Replica(
        name="one-1", service="one", command=[sys.executable, "-c", show],
        environment={"MILLRACE_GATEWAY_API_KEY_FILE": "", "MILLRACE_WORKER_DTYPE": "float32"},
        ports={}, probe=None, probe_interval_s=1, probe_timeout_s=1, stop_grace_s=1,
        restart="no", needs=[],
    )  # fmt: skip
    process = ReplicaProcess(replica, tmp_path, "run", lambda name, line: None).start()
    assert process.communicate()[0].split() == [b"/keys", b"float32"]


@pytest.mark.parametrize("command", [["doctor", "--state=."], ["--help"], ["models"]])
def test_a_full_disk_under_the_output_is_one_line(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "millrace.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("millrace: No space left on device: the output is cut\n")
    assert "Traceback" not in done.stderr


def test_a_state_that_finds_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateFolder(tmp_path)

    def cut(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", cut)
    with pytest.raises(CommandError, match="No space left on device"):
        state.write(RunState("run", ProcessId(1, 1), "http://u", "m", ready=True, replicas=[]))
    assert list(tmp_path.iterdir()) == []
