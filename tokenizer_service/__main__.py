"""Composition root of the text tier: `python -m tokenizer_service --model=DIR`."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

from common import logs, metrics, rpc, threads
from common.addresses import joined
from common.errors import PortTaken, refuse_to_work
from common.model_folder import ModelFolderError
from common.settings import SettingsError, load_or_exit
from protos.tokenizer_pb2_grpc import add_TokenizerServicer_to_server
from tokenizer_service.engines import engine_peers
from tokenizer_service.metrics import TokenizerMetrics
from tokenizer_service.pipeline import TextPipeline
from tokenizer_service.service import TokenizerService
from tokenizer_service.settings import Settings
from tokenizer_service.states import StateFeed
from tokenizer_service.text_model import TextModel, load_text_model

log = logging.getLogger(__name__)
GRACE_S = 0.2


def main() -> None:
    """Load the model's text side, then serve until SIGTERM."""
    settings = load_or_exit(Settings, "tokenizer")
    logs.setup("tokenizer", settings.log_level)
    threads.check_or_exit("tokenizer")
    registry = metrics.new_registry()
    series = TokenizerMetrics(registry)
    try:
        model = load_text_model(
            Path(settings.model), settings.served_model_name, series, settings.template_kwargs()
        )
    except (ModelFolderError, SettingsError) as error:
        refuse_to_work(f"tokenizer: {error}")
    states = StateFeed(sought=settings.engines)
    pipeline = TextPipeline(model, series, on_engine_state=states.tell, sought=settings.engines)
    reasons = pipeline.seats.reasons
    try:
        metrics.serve(settings.metrics_host, settings.metrics_port, registry, reasons)
        asyncio.run(serve(settings, model, pipeline, states))
    except PortTaken as error:
        sys.exit(f"tokenizer: {error}")


async def serve(
    settings: Settings, model: TextModel, pipeline: TextPipeline, states: StateFeed
) -> None:
    """Run server, engine connections and state feed until a signal asks to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await model.warm_up()
    server = rpc.new_server()
    engines = engine_peers(settings.engines, pipeline)
    service = TokenizerService(pipeline, states, engines.unreachable)
    add_TokenizerServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = await rpc.start_server(server, joined(settings.host, settings.port))
    work = [
        asyncio.create_task(engines.run()),
        asyncio.create_task(states.run()),
    ]
    gc.collect()
    gc.freeze()
    log.info("serving", extra={"model": model.folder.name, "port": port})
    await stop.wait()
    log.info("stopping")
    await server.stop(GRACE_S)  # gateways replay elsewhere what was under way
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await model.close()


if __name__ == "__main__":
    main()
