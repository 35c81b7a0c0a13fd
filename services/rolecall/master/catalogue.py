"""The installed workloads, and the validation of requests for jobs."""

import importlib.util
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint
from importlib.resources import files
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from rolecall.kit.data_access import DataAccess, DataPath, read_access
from rolecall.logs import about
from rolecall.master.extent import check_extent
from rolecall.master.field_errors import FieldError, explain, field_error, unknown
from rolecall.spec.errors import InputError, InvalidJob, NotFound
from rolecall.spec.job import JobRequest
from rolecall.spec.numbers import counted
from rolecall.spec.resources import Resources, RoleDemand, RoleRequest, count_and_resources
from rolecall.spec.role import Role
from rolecall.spec.visible import MAX_MARKS, is_blank, is_printable, stacks_marks
from rolecall.spec.workload import Params, PerNodeParams, Workload
from rolecall.workloads.catalogue import installed

_MAX_EXPLAINED = 1000
"""The maximum number of errors that are explained. pydantic can't return only a part of its errors."""
_LOG = logging.getLogger(__name__)
_MAX_DATA_ERRORS = 20
_INSTALLED_LATER = "; one that was installed after the master started needs a restart of the master"


@dataclass(frozen=True)
class Catalogue:
    """The workloads by name, and the plug-ins that could not be loaded with the reason."""

    workloads: Mapping[str, Workload[Any]]
    broken: Mapping[str, str] = field(default_factory=dict[str, str])
    data: DataAccess = field(default_factory=read_access)
    """The data that jobs can read according to the master's settings."""

    def get(self, name: str) -> Workload[Any]:
        """The workload with this name. Raises `NotFound` with the known ones."""
        if name in self.workloads:
            return self.workloads[name]
        found = self._unknown(name)
        raise NotFound(f"{found['message']} (valid: {found['legal']})")

    def example(self, name: str) -> dict[str, Any] | None:
        """A job that runs, from `example.json` in the workload's package; None if it has none."""
        return _example(self.workloads[name].package)

    def expendable(self, name: str) -> frozenset[Role]:
        """The roles whose loss does not end an attempt; none if the workload is no longer installed."""
        return self.workloads[name].expendable if name in self.workloads else frozenset()

    def is_per_node(self, name: str) -> bool:
        """Return whether the workload runs on every node; False if it is no longer installed."""
        return name in self.workloads and self.workloads[name].per_node

    def target_nodes(self, name: str, params: Mapping[str, Any]) -> tuple[str, ...]:
        """The only nodes for a job whose workload runs on every node; empty if it runs on all, and for other jobs."""
        return tuple(params.get("nodes", ())) if self.is_per_node(name) else ()

    def check_request(self, request: JobRequest) -> dict[str, Any]:
        """The complete and validated fields of the job's spec. Raises `InvalidJob` with all field errors."""
        workload = self.workloads.get(request.workload)
        if workload is None:
            raise InvalidJob([self._unknown(request.workload)])
        roles, field_errors = check_roles(workload, request.roles)
        resources, unmet = check_resources(workload, request.roles)
        field_errors += unmet
        params, more = check_params(workload, request.params)
        more += check_data(params, self.data)
        field_errors += check_name(request.name)
        if params is None or field_errors or more:
            raise InvalidJob([*field_errors, *more])
        _check_together(workload, params, roles)
        own = {"roles": roles, "resources": _with_defaults(workload, roles, resources)}
        return request.model_dump(exclude={"roles"}) | {"params": params.model_dump(mode="json")} | own

    def _unknown(self, name: str) -> FieldError:
        if name not in self.broken:
            return unknown("workload", "workload", name, self.workloads, _INSTALLED_LATER)
        found = unknown("workload", "workload", name, self.workloads)
        return found | {"message": f"{found['message']} (its plug-in could not be loaded: {self.broken[name]})"}


def load(points: Iterable[EntryPoint] | None = None) -> Catalogue:
    """The installed workloads. A broken one is logged and listed as broken; it does not stop the master."""
    workloads: dict[str, Workload[Any]] = {}
    broken: dict[str, str] = {}
    for point in installed().values() if points is None else points:
        try:
            workload = _loaded(point)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - foreign code may raise anything; it is logged and shown
            broken[point.name] = f"{type(error).__name__}: {error}"
            message = "workload %s from %s is broken: %s"
            _LOG.error(message, point.name, point.value, broken[point.name], extra=about("workload_broken"))
        else:
            workloads[workload.name] = workload
    return Catalogue(workloads, broken)


def check_name(name: str) -> list[FieldError]:
    """The error of a job's name, if it has one."""
    if not is_printable(name):
        return [
            field_error(
                "name", "it has characters that can't be printed", name, "printable text, without invisible characters"
            )
        ]
    if stacks_marks(name):
        message = f"it has more than {MAX_MARKS} combining marks in a row"
        return [field_error("name", message, name, f"text with at most {MAX_MARKS} marks on a letter")]
    if name and is_blank(name):
        return [field_error("name", "it shows nothing", name, "text with a letter, a digit or a sign, or no name")]
    return []


def check_roles(workload: Workload[Any], asked: Mapping[str, RoleDemand]) -> tuple[dict[Role, int], list[FieldError]]:
    """The number of workers of each role, including the defaults, and the field errors of the requested ones."""
    if workload.per_node:
        message = f"{workload.name} runs on each node once, in the node's own role"
        given = {
            role: demand.model_dump(exclude_none=True) if isinstance(demand, RoleRequest) else demand
            for role, demand in asked.items()
        }
        return {}, [field_error("roles", message, given, "none; params.nodes chooses nodes")] if asked else []
    field_errors = [
        unknown(f"roles.{role}", "role", role, workload.roles) for role in asked if role not in workload.roles
    ]
    given = {role: count_and_resources(demand)[0] for role, demand in asked.items()}
    roles = {
        role: count.default if (number := given.get(role)) is None else number for role, count in workload.roles.items()
    }
    for role, count in workload.roles.items():
        if not count.least <= roles[role] <= count.most:
            least, most = f"{count.least:,}", f"{count.most:,}"
            bounds = least if least == most else f"{least} to {most}"
            message = f"{workload.name} can't run with {counted(roles[role], f'{role} worker')}"
            field_errors.append(field_error(f"roles.{role}", message, roles[role], bounds))
    if not field_errors and not any(roles.values()):
        field_errors.append(field_error("roles", "the job has no workers", roles, "at least one worker"))
    return {role: number for role, number in roles.items() if number}, field_errors


def check_resources(
    workload: Workload[Any], asked: Mapping[str, RoleDemand]
) -> tuple[dict[Role, Resources], list[FieldError]]:
    """The requested resources of the roles, and the field errors of those that no node can give."""
    resources = {Role(role): count_and_resources(demand)[1] for role, demand in asked.items() if role in workload.roles}
    field_errors: list[FieldError] = []
    for role, gpus in ((role, own.gpus) for role, own in resources.items() if own.gpus):
        field = f"roles.{role}.gpus"
        if not workload.can_use_gpu(role):
            field_errors.append(
                field_error(field, f"{role} workers of {workload.name} can't use a GPU", gpus, "0, or omit it")
            )
        elif gpus > 1:
            message = f"a worker uses one GPU at most; for {gpus} GPUs request {gpus} workers with one each"
            field_errors.append(field_error(field, message, gpus, "0 or 1"))
    return {role: own for role, own in resources.items() if own != Resources()}, field_errors


def _with_defaults(
    workload: Workload[Any], roles: Mapping[Role, int], asked: Mapping[Role, Resources]
) -> dict[Role, Resources]:
    """The resources of the roles that have workers, as requested and as the workload declares."""
    resources = {role: asked.get(role, Resources()) for role in roles}
    own = {role: one.model_copy(update={"gpus": 0}) for role, one in resources.items() if role in workload.cpu_only}
    marked = {role: one.model_copy(update={"busy": role in workload.busy}) for role, one in (resources | own).items()}
    return {role: one for role, one in marked.items() if one != Resources()}


def check_params(workload: Workload[Any], given: Mapping[str, Any]) -> tuple[Params | None, list[FieldError]]:
    """The parameters as the workload's type, or their field errors. A string is not accepted as a number."""
    if field_errors := check_extent(given):
        return None, field_errors
    try:
        # As JSON, because only then strict types accept lists as tuples and strings as enumeration members.
        return workload.params.model_validate_json(json.dumps(given), strict=True), []
    except ValidationError as error:
        if (count := error.error_count()) > _MAX_EXPLAINED:
            message = f"it has {count} problems, too many to list: it does not look like parameters of {workload.name}"
            return None, [field_error("params", message, given, f"what `rolecall workloads {workload.name}` shows")]
        errors = [dict(one) for one in error.errors(include_url=False)]
        return None, explain(errors, schema_of(workload.params), ("params",), given)


@cache
def _example(package: str) -> dict[str, Any] | None:
    try:
        return json.loads((files(package) / "example.json").read_text())
    except (ImportError, OSError, ValueError):
        return None


@cache
def schema_of(params: type[Params]) -> dict[str, Any]:
    return params.model_json_schema()


def check_data(params: Params | None, access: DataAccess) -> list[FieldError]:
    """The field errors of paths and URLs in the parameters that are detectable without the nodes' disks.

    Returns only the first few, because a list can have thousands of paths.
    """
    field_errors: list[FieldError] = []
    for at, path in _data_paths(params, "params"):
        try:
            access.check_written(path)
        except InputError as error:
            field_errors.append(field_error(at, str(error), path, access.legal))
        if len(field_errors) == _MAX_DATA_ERRORS:
            break
    return field_errors


def _data_paths(value: object, at: str) -> Iterator[tuple[str, DataPath]]:
    match value:
        case DataPath():
            yield at, value
        case BaseModel():
            for name in type(value).model_fields:
                yield from _data_paths(getattr(value, name), f"{at}.{name}")
        case list() | tuple():
            for place, item in enumerate(cast(Iterable[object], value)):
                yield from _data_paths(item, f"{at}.{place}")
        case _:
            pass


def _check_together(workload: Workload[Any], params: Params, roles: dict[Role, int]) -> None:
    if workload.check_counts is None:
        return
    try:
        workload.check_counts(params, roles)
    except ValueError as error:
        given = {role.value: number for role, number in roles.items()}
        raise InvalidJob([field_error("roles", str(error), given, "counts that fit the parameters")]) from None


def _loaded(point: EntryPoint) -> Workload[Any]:
    loaded = point.load()
    if not isinstance(loaded, Workload):
        raise TypeError(f"{point.value} has the type {type(loaded).__name__}, not Workload")
    workload = cast(Workload[Any], loaded)
    if workload.per_node and not issubclass(workload.params, PerNodeParams):
        raise TypeError(f"{workload.name} runs on every node, so its params must be a kind of PerNodeParams")
    missing = sorted(
        {module for role in workload.roles if importlib.util.find_spec(module := workload.module_of(role)) is None}
    )
    if missing:
        raise ImportError(f"{workload.name} has no module {', '.join(missing)} for its roles")
    return workload
