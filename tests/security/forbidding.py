"""Code for a child process: forbid one of its system calls, as a container's profile does."""

import platform

FORBIDDING = """
import ctypes, struct
def forbid(number, error, argument=None):
    '''A seccomp filter, as a container's profile is: the system call, or only with this first argument, fails with
    this error.'''
    fail, allow = (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)
    if argument is None:
        code = ((0x20, 0, 0, 0), (0x15, 0, 1, number), fail, allow)
    else:
        code = ((0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, argument), fail, allow)
    program = ctypes.create_string_buffer(b"".join(struct.pack("@HBBI", *line) for line in code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(program)))
    assert libc.prctl(22, 2, filters, 0, 0) == 0
"""
PRCTL = {"x86_64": 157, "aarch64": 167}[platform.machine()]
SOCKET = {"x86_64": 41, "aarch64": 198}[platform.machine()]
"""The numbers of prctl(2) and socket(2)."""
