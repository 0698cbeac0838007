"""How `host:port` is written: an IPv6 address stands in brackets there, and without them alone."""


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
