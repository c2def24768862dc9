"""Which hosts a download may reach: public ones, and those that the settings allow.

Test vectors for every worker: conformance/media/vectors.json. Sources: the IANA special-purpose address
registries for IPv4 and IPv6; cloud metadata services.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# a list of our own: what Python calls global changed with its releases, and Go has no such notion
REFUSED: list[tuple[str, Network]] = [
    (why, ip_network(network))
    for why, networks in {
        "this host": "0.0.0.0/8",
        "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
        "carrier-grade NAT": "100.64.0.0/10",
        "loopback": "127.0.0.0/8",
        "link-local, metadata": "169.254.0.0/16",
        "metadata": "168.63.129.16/32",  # Azure's, in public space
        "reserved": "192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4",
        "6to4": "192.88.99.0/24 2002::/16",
        "multicast": "224.0.0.0/4",
        "reserved for protocols": "2001::/23",
        "documentation": "2001:db8::/32 3fff::/20",
    }.items()
    for network in networks.split()
]
GLOBAL_V6 = ip_network("2000::/3")


class Allowed:
    """The parsed TASKGATE_MEDIA_ALLOW: host names (`*.` before one for what is below it), addresses, networks."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for an entry that looks like a network and is none."""
        self.hosts: set[str] = set()
        self.suffixes: tuple[str, ...] = ()
        self.networks: list[Network] = []
        for entry in filter(None, re.split(r"[\s,]+", text.lower())):
            if "/" in entry or _is_address(entry):
                self.networks.append(ip_network(entry.strip("[]"), strict=False))
            elif entry.startswith("*."):
                self.suffixes += (entry[1:],)
            else:
                self.hosts.add(entry.rstrip("."))

    def host(self, name: str) -> bool:
        name = name.lower().rstrip(".")
        return name in self.hosts or name.endswith(self.suffixes)

    def address(self, address: Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


def refused(address: Address) -> str | None:
    """Why an address is not a public one, None if it is."""
    for why, network in REFUSED:
        if address.version == network.version and address in network:
            return why
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return "IPv4-mapped"
        if address not in GLOBAL_V6:  # loopback, unique local, link-local, NAT64, multicast, and what is not given out
            return "not global"
    return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text.strip("[]"))
    except ValueError:
        return False
    return True
