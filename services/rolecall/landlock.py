"""Landlock, the Linux kernel's sandbox for unprivileged processes: see landlock(7).

A restricted process, and every process that it starts, can open only what its rules allow. This can't be undone.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from enum import IntFlag
from pathlib import Path

from rolecall.process import LIBC, check_result, set_no_new_privileges

# The same on all architectures: these calls are newer than the unification of the numbers.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_SCOPE_SIGNAL = 1 << 1


class AccessRights(IntFlag):
    """The kernel's access rights (`LANDLOCK_ACCESS_FS_…`)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


LIST = AccessRights.READ_DIR
READ = AccessRights.EXECUTE | AccessRights.READ_FILE | AccessRights.READ_DIR
DEVICE = (
    AccessRights.READ_FILE
    | AccessRights.WRITE_FILE
    | AccessRights.TRUNCATE
    | AccessRights.IOCTL_DEV
    | AccessRights.READ_DIR
)
WRITE = (
    READ
    | AccessRights.WRITE_FILE
    | AccessRights.REMOVE_DIR
    | AccessRights.REMOVE_FILE
    | AccessRights.MAKE_DIR
    | AccessRights.MAKE_REG
    | AccessRights.TRUNCATE
)
"""Files and folders only, because programs outside the sandbox could follow a link or block on a pipe. Without `REFER`,
nothing can be moved here from a folder in which links can be created."""
SCRATCH = WRITE | AccessRights.MAKE_SOCK | AccessRights.MAKE_FIFO | AccessRights.MAKE_SYM | AccessRights.REFER
"""All types of temporary files, which no other program opens."""
_FILE_RIGHTS = (
    AccessRights.EXECUTE
    | AccessRights.WRITE_FILE
    | AccessRights.READ_FILE
    | AccessRights.TRUNCATE
    | AccessRights.IOCTL_DEV
)
# The access rights that later versions of the interface added, by version.
_ADDED_RIGHTS = {2: AccessRights.REFER, 3: AccessRights.TRUNCATE, 5: AccessRights.IOCTL_DEV}
_SCOPES_SINCE = 6


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def version() -> int:
    """The version of the kernel's interface, 1 or higher.

    Raises `OSError` if there is none: `ENOSYS` (a kernel before 5.13, or built without it), `EOPNOTSUPP` (not in the
    boot parameter `lsm=`) or `EPERM` (a seccomp filter rejects the system call).
    """
    return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))


def restrict(rules: Iterable[tuple[Path, AccessRights]]) -> None:
    """Restrict the calling thread, and all threads and processes that it starts later, to `rules`.

    A rule is a path with the access rights for it and everything below it. Nonexistent paths are skipped. From version
    6 on, the thread can't send signals to processes outside the sandbox either. Call this function while the process
    has a single thread. Raises `OSError` as `version` does.
    """
    abi = version()
    missing = [access for since, access in _ADDED_RIGHTS.items() if abi < since]
    handled = AccessRights(sum(AccessRights) - sum(missing))
    attributes = _RulesetAttr(handled, 0, _SCOPE_SIGNAL if abi >= _SCOPES_SINCE else 0)
    ruleset = _call(
        _CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), ctypes.c_uint32(0)
    )
    try:
        for path, access in rules:
            _allow(ruleset, path, access & handled)
        set_no_new_privileges()
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, access: AccessRights) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
            return  # No rule is needed for what doesn't exist or is inaccessible anyway.
        raise
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _FILE_RIGHTS
        rule = _PathBeneathAttr(access, descriptor)
        _call(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    return check_result(LIBC.syscall(ctypes.c_long(number), *arguments), "landlock")
