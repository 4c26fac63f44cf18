"""A port for servers that must be told one."""

import random
import socket


def free_port() -> int:
    """A port of loopback that nobody listens on, below those that the system gives to servers and clients of others."""
    anywhere = random.SystemRandom()  # hypothesis gives each process the same numbers
    while True:
        port = anywhere.randrange(15_000, 32_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
