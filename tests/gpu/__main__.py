"""Runs the tests of this folder: `python3 -m tests.gpu --device cuda --report build/gpu.json`.

With `--wheels FOLDER`, packages come from the wheels in that folder, which are unpacked to `build/packages` first, and
from the interpreter itself, which must have torch. Needs neither pip nor a virtual environment.
"""

import argparse
import configparser
import os
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Unpack the wheels if given, then replace this process by pytest; unknown options are pytest's."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the jobs compute")
    parser.add_argument("--report", default="build/gpu.json", help="the file for results and figures")
    parser.add_argument("--wheels", type=Path, action="append", default=[], help="a folder of wheels; repeatable")
    options, rest = parser.parse_known_args(arguments)
    paths = [ROOT / "services", ROOT]
    if options.wheels:
        paths.append(ROOT / "build" / "packages")
        for folder in options.wheels:
            unpack(folder, paths[-1])
        declare(paths[-1])
    os.environ.update(
        ROLECALL_TEST_DEVICE=options.device,
        ROLECALL_TEST_REPORT=str(Path(options.report).resolve()),
        # Processes of the tests inherit it.
        PYTHONPATH=os.pathsep.join(map(str, [*paths, os.environ.get("PYTHONPATH", "")])).rstrip(os.pathsep),
    )
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), str(HERE), *rest])


def unpack(wheels: Path, target: Path) -> None:
    """Unpack all wheels of a folder into `target`, which is then a folder of packages."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        sys.exit(f"there are no wheels in {wheels}; make them with `make wheels-gpu`")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)


def declare(target: Path) -> None:
    """Write Rolecall's metadata, as an installation does: its workloads are found by their entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = target / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(metadata)
    points = configparser.ConfigParser()
    points.read_dict(project["entry-points"])
    with (folder / "entry_points.txt").open("w") as file:
        points.write(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
