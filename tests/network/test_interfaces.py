"""The interfaces of this machine, and the id of its network namespace."""

import subprocess
from collections import defaultdict
from socket import AF_INET, AF_INET6

import psutil
from tests.prerequisites import require_namespaces

from rolecall.network.interfaces import has_address, interface_of, network_namespace


def test_an_address_is_found_with_and_without_the_zone_of_a_link_local_one() -> None:
    owners = defaultdict[str, set[str]](set)
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in {AF_INET, AF_INET6}:
                owners[one.address.partition("%")[0]].add(name)
    assert owners
    for address, names in owners.items():
        assert interface_of(address) in names
        assert has_address(address)
        assert has_address(f"{address}%{min(names)}")


def test_an_address_of_another_machine_is_on_no_interface() -> None:
    assert interface_of("203.0.113.1") is None
    assert not has_address("203.0.113.1")


def test_two_network_namespaces_have_two_ids() -> None:
    show = ["readlink", "/proc/self/ns/net"]
    assert subprocess.check_output(show, text=True).strip() == network_namespace()
    require_namespaces("--net")
    assert subprocess.check_output(["unshare", "--net", *show], text=True).strip() != network_namespace()
