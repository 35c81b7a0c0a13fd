"""What a container starts: `python -m rolecall`.

`ROLE` says what this container is. The master's runs two programs, the control program and a node for driver ranks,
each a process of its own that may die without the other; every other container is a node. `python -m rolecall PROGRAM`
runs one program by itself, which is how the supervisors start them.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from rolecall.edge.logs import log_to_stderr
from rolecall.node.name import node_name
from rolecall.process import forbid_inspection, keep_files_private
from rolecall.settings import for_nodes, read_master, read_node, read_role
from rolecall.spec.errors import SettingsError
from rolecall.spec.role import Role
from rolecall.supervisor import Program, Supervisor

# Imported by name, because a node has no use for the control program's code, nor that for a node's.
_PROGRAMS: dict[str, tuple[str, Callable[[], Any]]] = {
    "master": ("rolecall.master.server", read_master),
    "node": ("rolecall.node.server", read_node),
}
_FINAL = (os.EX_USAGE, os.EX_CONFIG)


def main(arguments: Sequence[str]) -> int:
    """Run the container or the one program that is named; exit code 64 is bad usage, 78 a bad environment."""
    forbid_inspection()  # Before a secret is read; what the kernel holds of the environment is hidden from now on, too.
    keep_files_private()
    try:
        match arguments:
            case []:
                return _run_container()
            case [name] if name in _PROGRAMS:
                return _run_program(name)
            case _:
                print(f"usage: python -m rolecall [{'|'.join(_PROGRAMS)}]", file=sys.stderr)
                return os.EX_USAGE
    except SettingsError as error:
        print(f"rolecall: {error}", file=sys.stderr)
        return os.EX_CONFIG


def _run_container() -> int:
    if read_role() != Role.MASTER:
        return _run_program("node")
    environment = os.environ | {"MASTER_ADDR": os.environ.get("MASTER_ADDR") or "127.0.0.1"}
    log_to_stderr(form=read_master().log_format)
    if (name := read_node(MASTER_ADDR=environment["MASTER_ADDR"]).name) is not None:
        node_name(name)
    return _supervise(programs(environment))


def programs(environment: Mapping[str, str]) -> list[Program]:
    """What the master's container runs, each with the secrets that it needs."""
    given = {"master": environment, "node": for_nodes(environment)}
    return [Program(name, (sys.executable, "-m", "rolecall", name), given[name]) for name in _PROGRAMS]


def _supervise(programs: Sequence[Program]) -> int:
    """Run them until a signal comes, or the control program ends for good.

    Its node's end is no reason for that: jobs on other nodes need the control program, and a node that is refused may
    be taken a little later.
    """
    control = programs[0]
    with Supervisor(programs) as supervisor:
        while not supervisor.should_exit:
            for ended in supervisor.wait():
                if ended.program is control and ended.code in _FINAL:
                    return ended.code
    return os.EX_OK


def _run_program(name: str) -> int:
    module, read = _PROGRAMS[name]
    settings = read()
    return import_module(module).run(settings) or os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
