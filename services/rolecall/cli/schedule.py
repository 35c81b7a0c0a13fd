"""`rolecall schedule`: the picture and the bubble of a pipeline schedule, without a cluster and without torch."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.output import out, print_json, write_text
from rolecall.kit.csv_schedules import MAX_BYTES, format_schedule, parse_schedule
from rolecall.kit.divisors import nearest
from rolecall.kit.orders import planned_order
from rolecall.kit.pictures import schedule_svg, schedule_text
from rolecall.kit.pipelining import Task, bubble, makespan, timed
from rolecall.kit.schedules import MAX_VIRTUAL, SCHEDULES, Schedule
from rolecall.spec.errors import InputError
from rolecall.spec.numbers import counted
from rolecall.spec.similar import most_similar

_MAX_RANKS, _MAX_MICRO_BATCHES = 64, 512
_NAMES = ", ".join(SCHEDULES)
_WIDEST = 10_000


def _names(incomplete: str) -> list[str]:
    return [name for name in SCHEDULES if name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(metavar="SCHEDULE", help=f"{_NAMES}, or a CSV file in torch's format.", autocompletion=_names),
]
Ranks = Annotated[int | None, typer.Option("--ranks", min=2, max=_MAX_RANKS, help="Pipeline ranks; 4 by default.")]
MicroBatches = Annotated[
    int | None, typer.Option("--micro-batches", min=1, max=_MAX_MICRO_BATCHES, help="Micro-batches; 8 by default.")
]
VirtualStages = Annotated[
    int | None,
    typer.Option(
        "--virtual-stages",
        min=1,
        max=MAX_VIRTUAL,
        help="Virtual stages per rank; by default 1 or 2, as the schedule requires.",
    ),
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also write the picture to this file.")]
Csv = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FILE", help="Also write the schedule in torch's CSV format, for `params.schedule` of a job."
    ),
]


def schedule(  # noqa: PLR0917 - the command line is the signature
    name: Name,
    ranks: Ranks = None,
    micro_batches: MicroBatches = None,
    virtual_stages: VirtualStages = None,
    svg: Svg = None,
    csv: Csv = None,
    json: Annotated[bool, typer.Option("--json", help="Print the schedule as JSON.")] = False,
) -> None:
    """Draw a pipeline schedule and compute its bubble, without a cluster.

    The picture assumes equal stages, communication that takes no time, and backward passes that take twice as long as
    forward passes.
    """
    order, title = (
        _built_in(SCHEDULES[name], ranks or 4, micro_batches or 8, virtual_stages)  # type: ignore[index]
        if name in SCHEDULES
        else _from_file(Path(name), ranks, micro_batches, virtual_stages)
    )
    planned, idle = timed(order), bubble(order)
    facts = f"bubble {idle:.1%}, duration {makespan(order):g} forward passes"
    if svg is not None:
        write_text(svg, schedule_svg(planned, title, facts))
    if csv is not None:
        write_text(csv, format_schedule(order))
    if json:
        rows = [[{"task": str(one.task), "begin": one.begin, "end": one.end} for one in tasks] for tasks in planned]
        print_json({"schedule": title, "bubble": idle, "length": makespan(order), "ranks": rows})
        return
    out.print(f"{title}: {facts}", markup=False, soft_wrap=False)
    lines = schedule_text(planned, out.width if sys.stdout.isatty() else _WIDEST)
    for line in lines:
        out.print(line, markup=False)
    if svg is None and len(lines) > len(planned):
        out.print("\n--svg FILE writes a picture with each rank in one row.", markup=False)


def _built_in(rules: Schedule, ranks: int, micro_batches: int, virtual: int | None) -> tuple[list[list[Task]], str]:
    """The order of one of torch's schedules, and its title. Raises `CommandError` with the valid numbers."""
    minimum, maximum = rules.virtual_stages
    stages = virtual or rules.default_virtual_stages
    if not minimum <= stages <= maximum:
        raise CommandError(
            Exit.USAGE, f"--virtual-stages is {stages}; {rules.name} requires {rules.virtual_stages_text}"
        )
    valid = [
        count
        for count in range(1, _MAX_MICRO_BATCHES + 1)
        if rules.micro_batches.is_valid(count, ranks, ranks * stages)
    ]
    if micro_batches not in valid:
        raise CommandError(
            Exit.USAGE,
            f"--micro-batches is {micro_batches}; {rules.name} with {counted(ranks, 'rank')} and "
            f"{counted(ranks * stages, 'virtual stage')} requires {rules.micro_batches.description}; "
            f"nearest valid: {nearest(valid, micro_batches)}",
        )
    title = _title(rules.name, ranks, stages, micro_batches)
    return planned_order(rules.name, ranks, micro_batches, stages), title


def _from_file(path: Path, *given: int | None) -> tuple[list[list[Task]], str]:
    """The order in a CSV file, and its title. Raises `CommandError` if it is not valid, or not what `given` says."""
    if not path.exists():
        near = most_similar(str(path), SCHEDULES)
        hint = f"did you mean {near!r}? " if near else ""
        raise CommandError(Exit.USAGE, f"there is no schedule and no CSV file {path}; {hint}valid: {_NAMES}, or a file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"it has more than {MAX_BYTES} bytes")
        own = parse_schedule(content.decode().splitlines())
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise CommandError(Exit.USAGE, f"{path}: {error}") from None
    has = (own.ranks, own.micro_batches, own.virtual_stages)
    names = ("--ranks", "--micro-batches", "--virtual-stages")
    for option, expected, found in zip(names, given, has, strict=True):
        if expected not in (None, found):
            raise CommandError(Exit.USAGE, f"{option} is {expected}, but {path} has {found}; omit the option")
    title = _title(path.name, own.ranks, own.virtual_stages, own.micro_batches)
    return [list(tasks) for tasks in own.order], title


def _title(name: str, ranks: int, stages: int, micro_batches: int) -> str:
    own = f", {stages} virtual stages each" if stages > 1 else ""
    return f"{name}, {counted(ranks, 'rank')}{own}, {counted(micro_batches, 'micro-batch')}"
