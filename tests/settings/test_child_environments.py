"""The environments of programs that a program starts."""

import os
import subprocess
import sys

import pytest

from rolecall.settings.child_environments import heap_variables

ALLOCATE = """
import ctypes
from rolecall.runtime.heap import keep_freed_memory

class Usage(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

library = ctypes.CDLL(None)
library.aligned_alloc.restype = ctypes.c_void_p
library.mallinfo2.restype = Usage
keep_freed_memory()
for _ in range(50):
    tensors = [library.aligned_alloc(64, 4 << 20) for _ in range(4)]
    for block in tensors:
        library.free(ctypes.c_void_p(block))
print(library.mallinfo2().arena >> 20)
"""


def heap_mib(environment: dict[str, str]) -> int:
    """The size of the heap of a process that allocates and frees tensors of 4 MiB, four of them at a time."""
    command = [sys.executable, "-c", ALLOCATE]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_the_next_tensors_use_the_memory_of_those_that_were_freed() -> None:
    """Without the options, the heap of version 2.36 is three times as large."""
    assert heap_mib(heap_variables({})) < 24


@pytest.mark.parametrize(("given", "added"), [({}, ""), ({"GLIBC_TUNABLES": "a=1"}, ":a=1")], ids=["none", "one"])
def test_options_of_the_user_count(given: dict[str, str], added: str) -> None:
    expected = {"GLIBC_TUNABLES": f"glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0{added}"}
    assert heap_variables(given) == heap_variables(expected) == expected
