"""Runs benchmarks and writes their report: `python -m benchmarks [NAME ...] [--rounds N] [--out FOLDER]`."""

import argparse
import importlib
import os
import runpy
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.contest import Contest, Result, hold
from benchmarks.machine import describe

SERVICE = ("first_step", "queue", "logs", "pages", "overheads", "scale")
"""Benchmarks of start-up, master and running jobs, which have reports of their own and run only by name."""
NAMES = ("embedding_ddp", "rnn_lm", "resnet_pipeline", "transformer_pipeline", "reinforce")


def main() -> None:
    """Run the contests, then write `report.md`, `report.json` and one chart for each to the folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"one of {', '.join(NAMES)}, by default all of these; or one of {', '.join(SERVICE)} alone",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark, by default its own number")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the report")
    options = parser.parse_args()
    if len(options.names) == 1 and options.names[0] in SERVICE:
        sys.argv = [f"benchmarks.{options.names[0]}"]
        runpy.run_module(sys.argv[0], run_name="__main__")
        return
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        valid = f"choose from {', '.join(NAMES)}, or one of {', '.join(SERVICE)} alone"
        parser.error(f"there is no benchmark {', '.join(unknown)}; {valid}")
    contests: list[Contest] = []
    for name in options.names or NAMES:
        contests += importlib.import_module(f"benchmarks.{name}").CONTESTS
    os.environ["PYTHONWARNINGS"] = "ignore"  # Of the contenders, whose processes begin after this.
    machine = describe()
    results: list[Result] = []
    for contest in contests:
        results.append(hold(contest, options.rounds))
        report.write(options.out, machine, results)
    print((options.out / "report.md").read_text())
    print(f"written to {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
