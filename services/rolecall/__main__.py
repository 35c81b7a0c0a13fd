"""The entry point of a container: `python -m rolecall`.

`ROLE` selects the programs. The master's container runs two processes, which are restarted separately: the control
program and a node for driver ranks. Every other container runs a node. `python -m rolecall PROGRAM` runs a single
program; supervisors use it to start theirs.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from rolecall.logs import log_to_stderr
from rolecall.node.name import node_name
from rolecall.process import forbid_inspection, keep_files_private
from rolecall.settings.child_environments import for_nodes
from rolecall.settings.environment import read_role
from rolecall.settings.master import read_master
from rolecall.settings.node import read_node
from rolecall.spec.errors import SettingsError
from rolecall.spec.role import Role
from rolecall.supervisor import SupervisedProgram, Supervisor

# Imported on demand, so that a node doesn't load the control program and vice versa.
_PROGRAMS: dict[str, tuple[str, Callable[[], Any]]] = {
    "master": ("rolecall.master.server", read_master),
    "node": ("rolecall.node.server", read_node),
}
_PERMANENT_EXIT_CODES = (os.EX_USAGE, os.EX_CONFIG)


def main(arguments: Sequence[str]) -> int:
    """Run the container, or the program in `arguments`. Exit code 64 is for invalid usage, 78 for invalid settings."""
    try:
        forbid_inspection()  # Before secrets are read. It also hides the environment in `/proc`.
    except OSError as error:
        print(f"rolecall: {error.strerror}", file=sys.stderr)
        return os.EX_CONFIG
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


def programs(environment: Mapping[str, str]) -> list[SupervisedProgram]:
    """The programs of the master's container, each with only the secrets that it needs."""
    environments = {"master": environment, "node": for_nodes(environment)}
    return [SupervisedProgram(name, (sys.executable, "-m", "rolecall", name), environments[name]) for name in _PROGRAMS]


def _supervise(programs: Sequence[SupervisedProgram]) -> int:
    """Run the programs until a signal arrives, or until the control program exits with a code that rules out a restart.

    If the node exits, the control program continues: jobs on other nodes need it, and the master can accept the node
    later.
    """
    control = programs[0]
    with Supervisor(programs) as supervisor:
        while not supervisor.should_exit:
            for ended in supervisor.wait():
                if ended.program is control and ended.code in _PERMANENT_EXIT_CODES:
                    return ended.code
    return os.EX_OK


def _run_program(name: str) -> int:
    module, read = _PROGRAMS[name]
    settings = read()
    return import_module(module).run(settings) or os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
