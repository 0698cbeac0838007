from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from common.settings import ADDRESSES, SERVICES, SettingsError, load
from worker.settings import Settings as WorkerSettings


class Door(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[int, msgspec.Meta(ge=1, le=65535, description="TCP port")] = 8000
    host: str = "127.0.0.1"
    secret: str = ""
    lenient: bool = False


def test_later_sources_win(tmp_path: Path) -> None:
    config = tmp_path / "m.yaml"
    config.write_text("door: {port: 1, host: yaml}\nworker: {x: 1}\n")
    environ = {"MILLRACE_CONFIG": str(config), "MILLRACE_DOOR_PORT": "2"}
    assert load(Door, "door", [], {}) == Door()
    assert load(Door, "door", [], environ) == Door(port=2, host="yaml")
    assert load(Door, "door", ["--port=3", "--lenient"], environ).port == 3


def test_flags_take_both_spellings() -> None:
    assert load(Door, "door", ["--port", "5", "--host=x"], {}) == Door(port=5, host="x")
    assert load(Door, "door", ["--lenient", "--port", "5"], {}).lenient


def test_a_secret_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("hush\n")
    assert (
        load(Door, "door", [], {"MILLRACE_DOOR_SECRET_FILE": str(tmp_path / "s")}).secret == "hush"
    )


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(b"\xef\xbb\xbfdoor: {secret: \xc3\xbc}\n")
    code = (
        "from tests.common.test_settings import Door, load\n"
        "print(ascii(load(Door, 'door', []).secret))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environ = {**os.environ, **ascii_only, "MILLRACE_CONFIG": str(tmp_path / "m.yaml")}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout == "'\\xfc'\n", done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_an_empty_address_does_not_mean_all_of_them(service: str) -> None:
    package = {"gateway": "api_gateway", "tokenizer": "tokenizer_service", "engine": "engine_core"}
    settings = importlib.import_module(f"{package.get(service, service)}.settings").Settings
    argv = ["--metrics-host=", *(["--model=m"] if "model" in settings.__struct_fields__ else [])]
    with pytest.raises(SettingsError, match="length >= 1 - at `\\$.metrics_host`"):
        load(settings, service, argv, {})


def test_a_setting_told_twice_is_refused_unless_both_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("hush\n")
    environ = {"MILLRACE_DOOR_SECRET_FILE": str(tmp_path / "s"), "MILLRACE_DOOR_SECRET": "loud"}
    for both in (environ, dict(reversed(environ.items()))):
        with pytest.raises(SettingsError, match="MILLRACE_DOOR_SECRET and its _FILE differ"):
            load(Door, "door", [], both)
    assert load(Door, "door", [], {**environ, "MILLRACE_DOOR_SECRET": "hush"}).secret == "hush"


def test_an_empty_variable_is_an_unset_one() -> None:
    empty = {"MILLRACE_DOOR_PORT": "", "MILLRACE_DOOR_SECRET_FILE": ""}
    assert load(Door, "door", [], empty) == Door()


@pytest.mark.parametrize(
    ("argv", "environ", "named"),
    [
        (["--prot=1"], {}, "prot"),
        ([], {"MILLRACE_DOOR_PROT": "1"}, "prot"),
        (["--port=x"], {}, "port"),
        (["--port=70000"], {}, "port"),
        (["port"], {}, "port"),
    ],
)
def test_errors_name_the_field(argv: list[str], environ: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(Door, "door", argv, environ)


@pytest.mark.parametrize("content", [None, "{", "[1]", "door: [1]", "door: 5", "5", "[]"])
def test_a_file_that_holds_no_settings_is_named(tmp_path: Path, content: str | None) -> None:
    config = tmp_path / "m.yaml"
    if content is not None:
        config.write_text(content)
    with pytest.raises(SettingsError, match=r"MILLRACE_CONFIG: .*m\.yaml"):
        load(Door, "door", [], {"MILLRACE_CONFIG": str(config)})


def test_a_secret_whose_file_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="MILLRACE_DOOR_SECRET_FILE: .*none cannot be read"):
        load(Door, "door", [], {"MILLRACE_DOOR_SECRET_FILE": str(tmp_path / "none")})


def test_an_unknown_section_of_the_file_is_named(tmp_path: Path) -> None:
    config = tmp_path / "m.yaml"
    config.write_text("gatway: {port: 1}\n")
    with pytest.raises(SettingsError, match=r"\['gatway'\]; known: gateway, tokenizer, engine"):
        load(Door, "door", [], {"MILLRACE_CONFIG": str(config)})


@pytest.mark.parametrize(
    ("address", "is_good"),
    [("h:0", True), ("h:7200", True), ("h:59999", True), ("h:65535", True), ("a:1, b:2", True),
     ("h:65536", False), ("h:66000", False), ("h:99999", False), ("a:1, h:70000", False),
     ("tcp://h:1", False), ("*:1", False)],
)  # fmt: skip
def test_addresses_have_ports_that_exist(address: str, is_good: bool) -> None:
    assert bool(re.search(ADDRESSES, address)) is is_good


def test_a_pattern_is_told_in_words() -> None:
    with pytest.raises(SettingsError, match="^worker: engine is 'foo', expected: host:port of"):
        load(WorkerSettings, "worker", ["--model=x", "--engine=foo"], {})
    with pytest.raises(SettingsError, match="dtype is 'x', expected: auto, float32, bfloat16, f"):
        load(WorkerSettings, "worker", ["--model=x", "--dtype=x"], {})
