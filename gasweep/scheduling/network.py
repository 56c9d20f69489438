"""Which network interface carries an address: collectives must not follow what the hostname resolves to."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import MutableMapping

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interface_of(address: str) -> str | None:
    """The interface that has IPv4 `address`, e.g. "eth0"; None where it cannot be told (not Linux, IPv6)."""
    if not sys.platform.startswith("linux"):
        return None
    for _, name in socket.if_nameindex():
        if _address_of(name) == address:
            return name
    return None


def use_interface_of(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make gloo and NCCL talk over the interface of `address`, unless the user has chosen one.

    gloo otherwise binds to what the hostname resolves to, often 127.0.0.1, which no other node can reach.
    """
    name = interface_of(address)
    if name is not None:
        for variable in _INTERFACE_VARIABLES:
            environment.setdefault(variable, name)


def _address_of(interface: str) -> str | None:
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:  # no IPv4 address
            return None
    return socket.inet_ntoa(reply[20:24])
