"""Nodes' facts side by side."""

from rolecall.network.facts import Facts
from rolecall.network.findings import compare_facts
from rolecall.spec.finding import Level, NodeFinding


def fact(node: str, **values: str | None) -> Facts:
    usual = {"address": "10.0.0.1", "interface": "eth0", "host": node, "resolved": "10.0.0.1"}
    versions = {"python": "3.11", "torch": "2.14.1", "rolecall": "0.1.0"}
    return Facts.model_validate({"node": node, **usual, **versions, **values})


def worst(facts: list[Facts]) -> dict[tuple[str, tuple[str, ...]], NodeFinding]:
    return {(one.check, one.nodes): one for one in compare_facts(facts) if one.level is not Level.OK}


def test_nodes_alike_have_no_problems() -> None:
    assert worst([fact("a"), fact("b")]) == {}


def test_the_odd_one_out_is_named_with_the_version_of_most() -> None:
    found = worst([fact("a"), fact("b", torch="2.11.0"), fact("c")])
    assert found.keys() == {("torch", ("b",))}
    assert found["torch", ("b",)].level is Level.ERROR
    assert found["torch", ("b",)].message == "it has torch 2.11.0, most nodes have 2.14.1"


def test_another_python_is_a_warning() -> None:
    assert [one.level for one in worst([fact("a"), fact("b", python="3.12")]).values()] == [Level.WARNING]


def test_a_loopback_address_is_an_error_where_others_have_none() -> None:
    found = worst([fact("a"), fact("b", address="127.0.0.1", interface="lo")])
    assert found.keys() == {("interface", ("b",))}
    alone = [fact(node, address="127.0.0.1", interface="lo", resolved="127.0.1.1") for node in "ab"]
    assert worst(alone) == {}


def test_a_host_name_that_leads_nowhere_is_a_warning() -> None:
    found = worst([fact("a", resolved=None), fact("b", resolved="127.0.1.1")])
    assert found.keys() == {("name", ("a",)), ("name", ("b",))}
    assert "can't be resolved" in found["name", ("a",)].message
    assert "127.0.1.1, a loopback address" in found["name", ("b",)].message
