"""`millrace up`: runs docker-compose.yml as processes of this machine, until Ctrl-C or `down`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from api_gateway.auth import KeyFile
from common.model_folder import ModelFolderError
from common.settings import (
    SERVICES,
    SettingsError,
    from_environment,
    from_file,
    inherited,
    load,
)
from engine_core.tenant_file import read_tenants
from millrace import arguments, child, compose, loading
from millrace.errors import CommandError
from millrace.placement import LOOPBACK, Replica, place
from millrace.processes import (
    NO_PROC,
    claim,
    free_port,
    identify,
    is_address,
    is_alive,
    is_ipv4,
    is_listening,
    listener,
)
from millrace.project import (
    DEMO_MODEL,
    DEMO_NAME,
    HOME,
    Project,
    check_length,
    check_model_folder,
    model_folder,
    project,
    stop_command,
)
from millrace.project import add_arguments as add_project_arguments
from millrace.replica_process import from_the_root
from millrace.runner import Plan, Runner, in_background
from millrace.state import StateFolder
from tokenizer_service.model_folder import folder_name, served_names
from worker.memory import parse_size

VARIABLES = {  # option: variable of docker-compose.yml
    "model": "MODEL",
    "served_model_name": "SERVED_MODEL_NAME",
    **loading.VARIABLES,
    "host": "LISTEN_HOST",
    "port": "PORT",
    "tensor_parallel_size": "TENSOR_PARALLEL_SIZE",
    "api_key_file": "API_KEY_FILE",
    "log_level": "LOG_LEVEL",
}
SCALES = {"gateways": "api-gateway", "tokenizers": "tokenizer-service", "workers": "worker"}
ENGINE_TENSOR_PARALLEL = "MILLRACE_ENGINE_TENSOR_PARALLEL_SIZE"
MODEL_TARGET = "/model"
TIERS = {  # package: its name among the settings
    "api_gateway": "gateway",
    "tokenizer_service": "tokenizer",
    "engine_core": "engine",
    "worker": "worker",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `up`."""
    option = parser.add_argument
    option("--model", metavar="DIR", help="folder, or Hugging Face name (default: the demo model)")
    option("--served-model-name", type=arguments.served_name, metavar="NAME",
           help="name clients ask for (default: DIR's)")  # fmt: skip
    loading.add_arguments(parser)
    option("--host", metavar="IP", help="IPv4 address to listen on (default: 127.0.0.1)")
    option("--port", type=arguments.port, metavar="PORT", help="port of the API (default: 8000)")
    option("--gateways", type=arguments.count, metavar="G", help="processes of the gateway")
    option("--tokenizers", type=arguments.count, metavar="T", help="processes of the text tier")
    option("--workers", type=arguments.count, metavar="W", help="processes that compute")
    option("--tensor-parallel-size", type=arguments.count, metavar="N", help="workers per replica")
    option("--api-key-file", type=Path, metavar="FILE", help="keys that clients must show")
    option("--log-level", choices=["debug", "info", "warning", "error"])
    option(
        "--ready-timeout", type=arguments.amount, default=900.0, metavar="S",
        help="give up after so many seconds (default: 900, as long as a large model may load)",
    )  # fmt: skip
    option("--detach", action="store_true", help="return when ready, leave it running")
    add_project_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Start the stack; return the exit status."""
    which = project(args)
    for name in unknown_names(inherited({})):
        _report(f"{name} in the environment is no setting of any service, and ignored")
    variables = chosen_variables(args)
    _refuse(variables)
    if args.detach:
        return in_background(lambda detach: _run(args, which, variables, detach))
    return _run(args, which, variables, None)


def _run(
    args: argparse.Namespace,
    which: Project,
    variables: dict[str, str],
    detach: Callable[[], None] | None,
) -> int:
    """Hold the lock and run; `detach` is called once ready, when in the background."""
    lock = which.state.lock()
    if lock is None:
        which.state.check_in_sight()
        raise CommandError(_already(which.state, stop_command(args)))
    clean_up(which.state)
    plan = make_plan(args, which.file, variables)
    # Gateways share a port, so two stacks that start at the same moment would share it as well.
    claimed = claim(f"millrace {plan.url}")
    if claimed is None:
        raise CommandError(f"another stack starts at {plan.url}; use another port (--port)")

    def on_ready() -> None:
        key = variables.get("API_KEY_FILE") or asked(variables).get("MILLRACE_GATEWAY_API_KEY_FILE")
        stop = "Ctrl-C" if detach is None else stop_command(args)
        print(banner(plan, stop, key), flush=True)
        if detach is not None:
            detach()

    runner = Runner(plan, which.state, report=_report, echo=detach is None)
    status = asyncio.run(runner.run(on_ready))
    claimed.close()
    os.close(lock)
    return status


def chosen_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment with the options laid over it."""
    variables = inherited({})
    if args.model is not None:
        args.model = model_folder(args.model)
    for option, name in VARIABLES.items():
        value = getattr(args, option)
        if value is not None:
            path = isinstance(value, Path)
            variables[name] = os.path.realpath(value) if path else str(value)
    folder = variables.get("MODEL")
    name = folder_name(Path(folder)) if folder else DEMO_NAME
    told = asked(variables)
    chosen = told.get("SERVED_MODEL_NAME") or told.get("MILLRACE_TOKENIZER_SERVED_MODEL_NAME")
    return {**variables, "SERVED_MODEL_NAME": chosen or name}


def unknown_names(environment: Iterable[str]) -> list[str]:
    """Return what looks like a setting and is none; others than the user may have set it."""
    ours = re.compile(f"MILLRACE_(CONFIG|TAG|RUN|({'|'.join(SERVICES)})_.*)", re.IGNORECASE)
    return [n for n in environment if n.startswith("MILLRACE_") and not ours.fullmatch(n)]


def _refuse(variables: dict[str, str]) -> None:
    if identify(os.getpid()) is None:
        raise CommandError(NO_PROC)
    for name in ("MODEL", "SERVED_MODEL_NAME"):
        if not is_text(variables.get(name, "")):  # neither JSON nor the tokenizers' library take it
            raise CommandError(f"{name} is {variables[name]!a}, which is no UTF-8: rename it")
    host = variables.get("LISTEN_HOST")
    if host and not is_ipv4(host):
        raise CommandError(f"--host {host} is no IPv4 address, such as 127.0.0.1 or 0.0.0.0")
    told = asked(variables)
    sizes = (told.get(name, "1") for name in ("TENSOR_PARALLEL_SIZE", ENGINE_TENSOR_PARALLEL))
    if any(size != "1" for size in sizes):
        raise CommandError("--tensor-parallel-size above 1 does not exist yet; leave it out")
    if variables.get("DEVICE", "cpu") == "cuda" and importlib.util.find_spec("cupy") is None:
        raise CommandError("--device cuda needs CuPy: pip install 'millrace[gpu]' (or gpu-cuda13)")


def is_text(given: str) -> bool:
    """Tell whether what the system gave as bytes is UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_plan(args: argparse.Namespace, path: Path, variables: dict[str, str]) -> Plan:
    """Read the file and give every replica its ports; raise CommandError when it cannot run."""
    file = compose.load(path, variables, frozenset())
    told = asked(variables)
    for service in file.services.values():
        _check_environment(service.environment, told)
        for mount in service.volumes:
            _check_source(file.root / mount.source, mount.target)
    _check_length(told)
    scales = {SCALES[option]: getattr(args, option) for option in SCALES if getattr(args, option)}
    for option, name in SCALES.items():
        if name in scales and name not in file.services:
            raise CommandError(f"--{option}: there is no active service {name}")
    published = [
        address for service in file.services.values() for address in service.published().values()
    ]
    if not published:
        raise CommandError(f"{path}: no service publishes a port")
    for host, port in published:
        _check_port(host, port)
    host, port = published[0]
    served = variables["SERVED_MODEL_NAME"]
    replicas = place(file, scales, _distinct_ports())
    for name in SCALES.values():
        if name in file.services and not any(replica.service == name for replica in replicas):
            raise CommandError(f"there is no {name}: GATEWAYS, TOKENIZERS or WORKERS is 0")
    for replica in replicas:
        _check_settings(replica, file.root)
    return Plan(
        replicas=replicas,
        root=file.root,
        url=f"http://{LOOPBACK if host == '0.0.0.0' else host}:{port}",
        model=served_names(Path(variables.get("MODEL") or DEMO_MODEL), served)[0],
        is_public=not host.startswith("127."),
        ready_timeout_s=args.ready_timeout,
    )


def asked(variables: dict[str, str]) -> dict[str, str]:
    """Return what the caller's settings file and environment say; what is empty says nothing.

    A variable that names a file with a setting's value says that value.
    """
    said = {name: value for name, value in variables.items() if value}
    for package, service in TIERS.items():
        prefix = f"MILLRACE_{service}_".upper()
        try:
            values = from_environment(variables, prefix, _settings_of(package).__struct_fields__)
        except SettingsError as error:
            raise CommandError(f"settings: {error}") from error
        said |= {prefix + name.upper(): value for name, value in values.items()}
    return {**_written(variables), **said}


def _settings_of(package: str) -> Any:
    return importlib.import_module(f"{package}.settings").Settings


def _written(variables: dict[str, str]) -> dict[str, str]:
    """Return the settings of the caller's settings file as the environment would name them."""
    path = variables.get("MILLRACE_CONFIG", "")
    try:
        sections = {service: from_file(path, service) for service in SERVICES}
    except SettingsError as error:
        raise CommandError(str(error)) from error
    return {
        f"MILLRACE_{service}_{name}".upper(): str(value)
        for service, section in sections.items()
        for name, value in section.items()
        if value is not None
    }


def _check_environment(given: dict[str, str], told: dict[str, str]) -> None:
    """Refuse a setting of the caller's environment or file that is hidden here, or by an option."""
    for name, value in given.items():
        mine = told.get(name)
        if name.startswith("MILLRACE_") and mine and value and mine != value:
            raise CommandError(
                f"{name} is {mine!r} in the environment or the settings file, and {value!r} by the "
                "compose file or an option: leave one out"
            )


def _check_settings(replica: Replica, root: Path) -> None:
    """Refuse what a tier would end with, again and again: once, and before anything has started."""
    package = replica.command[-1]
    if package not in TIERS:
        return
    given = {name: value for name, value in replica.environment.items() if value}
    given = {**from_the_root(inherited({})), **given}
    try:
        settings = load(_settings_of(package), TIERS[package], [], inherited(given))
    except SettingsError as error:  # it says which tier
        raise CommandError(f"settings: {error}") from error
    try:
        _check_what_it_reads(settings, root)
    except (SettingsError, ValueError) as error:
        raise CommandError(f"settings: {TIERS[package]}: {error}") from error


def _check_what_it_reads(settings: Any, root: Path) -> None:
    """Raise SettingsError or ValueError for a file or a size that a tier would not start with.

    A path that is not whole is of the compose file, and told from its folder, `root`.
    """
    if path := getattr(settings, "api_key_file", ""):
        KeyFile(root / path)
    if path := getattr(settings, "tenant_limits", ""):
        read_tenants(str(root / path))
    for name in ("kv_cache_memory", "host_kv_memory"):
        if size := getattr(settings, name, ""):
            parse_size(name, size)


def _distinct_ports() -> Callable[[], int]:
    taken: set[int] = set()

    def pick() -> int:
        port = free_port()
        while port in taken:
            port = free_port()
        taken.add(port)
        return port

    return pick


def _check_source(source: Path, target: str) -> None:
    if target == MODEL_TARGET:
        demo = os.path.realpath(source) == os.path.realpath(DEMO_MODEL)
        if demo and not (source / "config.json").exists():
            raise CommandError("the demo model is not here; give a folder: --model DIR")
        check_model_folder(source)
    elif not source.exists():
        raise CommandError(f"{source} does not exist")


def _check_length(told: dict[str, str]) -> None:
    longest = told.get("MAX_MODEL_LEN") or told.get("MILLRACE_ENGINE_MAX_MODEL_LEN") or ""
    if not longest.isdecimal():
        return  # none, or the engine says what is wrong with it
    try:
        check_length(int(longest), Path(told.get("MODEL") or DEMO_MODEL))
    except ModelFolderError as error:
        raise CommandError(str(error)) from error


def _check_port(host: str, port: int) -> None:
    if not 0 < port < 65536:
        raise CommandError(f"port {port} is not between 1 and 65535")
    if not is_address(host):
        raise CommandError(f"--host {host} is no address of this machine")
    if not is_listening(host, port):
        return
    owner = listener(port)
    by = f" by pid {owner[0]} ({owner[1]})" if owner else ""
    others = range(port + 1, min(port + 100, 65536))
    free = next((p for p in others if not is_listening(host, p)), None)
    hint = f"use PORT={free} (--port {free})" if free else "use another (--port)"
    raise CommandError(f"port {port} is in use{by}; {hint}")


def _already(state: StateFolder, stop: str) -> str:
    run = state.running()
    where = f" at {run.url} (pid {run.runner.pid})" if run else ""
    return f"already running{where}; stop it with: {stop}"


def clean_up(state: StateFolder) -> None:
    """End what a killed runner has left. Call with the lock held."""
    old = state.read()
    if old is not None and not is_alive(old.runner):
        child.kill_marked(old.run)
        state.forget()


def _report(text: str) -> None:
    print(f"millrace: {text}", flush=True)


def banner(plan: Plan, stop: str, key: str | None) -> str:
    """Return what a newcomer needs next; `stop` is what ends it all."""
    shown_key = "$KEY" if key else "none"
    auth = f' -H "Authorization: Bearer {shown_key}"' if key else ""
    note = f"\n    KEY is one whose sha256 stands in {key}\n" if key else ""
    if stop == "millrace down" and (HOME / "Makefile").exists():
        stop = f"{stop} (or: make down)"
    if not key and plan.is_public:
        note = "\n    !! no keys are asked: OPEN to all who reach this machine (README, Keys)\n"
    hello = [{"role": "user", "content": "Hello"}]
    body = msgspec.json.encode({"model": plan.model, "stream": True, "messages": hello}).decode()
    return f"""
  Millrace is ready at {plan.url} with the model {plan.model}

    curl -N {plan.url}/v1/chat/completions -H 'Content-Type: application/json'{auth} \\
      -d {shlex.quote(body)}
    export OPENAI_BASE_URL={plan.url}/v1 OPENAI_API_KEY={shown_key}
{note}
  Stop it with {stop}.
"""
