"""Examples in the documentation are executed, and its statements are compared with the code."""

import ast
import errno
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Cluster
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from rolecall import __version__
from rolecall.cli.app import app
from rolecall.cli.exits import Exit
from rolecall.master.api.error_handlers import PROBLEM_TYPES
from rolecall.settings.master import MasterSettings
from rolecall.settings.node import NodeSettings
from rolecall.settings.worker import WorkerSettings
from rolecall.spec.job import JobRequest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_readme_example(example: str, cluster: Cluster) -> None:
    done = subprocess.run(["bash", "-c", example], cwd=ROOT, env=cluster.environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def _blocks(page: Path) -> list[str]:
    """The blocks of code in a document."""
    return re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def _commands() -> list[tuple[str, str]]:
    """The lines of code in the documents that run `rolecall`, with their documents."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = [(page.name, line) for page in pages for block in _blocks(page) for line in block.splitlines()]
    return [(name, line) for name, text in lines if (line := text.removeprefix("$ ")).startswith("rolecall ")]


def test_every_command_in_the_documents_is_valid() -> None:
    found = _commands()
    assert len(found) > 40
    for page, line in found:
        words = itertools.takewhile(lambda word: word not in {"|", ">", "&"}, shlex.split(line, comments=True))
        # Unknown commands and options are errors before the help is shown.
        done = CliRunner().invoke(app, [*list(words)[1:], "--help"])
        assert done.exit_code == 0, f"{page}: {line}: {done.stderr}"


def test_every_command_is_in_the_guide_to_the_command_line() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    missing = [name for name in commands.commands if f"rolecall {name}" not in page]
    assert missing == []


@pytest.mark.slow
def test_the_commands_of_the_readme_are_found_in_a_new_shell() -> None:
    block = next(block for block in _blocks(ROOT / "README.md") if "rolecall submit" in block)
    first, *commands = block.splitlines()
    assert first == "source .venv/bin/activate"
    assert all(command.startswith("rolecall ") for command in commands)
    script = f"source {sys.prefix}/bin/activate; command -v rolecall; rolecall --version"
    new = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=new, capture_output=True, text=True, check=False)
    assert done.stdout.split()[1:] == [__version__], done.stderr


def test_the_example_of_the_python_client(cluster: Cluster, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=cluster.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")


def test_every_type_of_problem_is_documented() -> None:
    table = re.findall(r"^\| `(urn:[a-z:-]+)` \|", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(table) == PROBLEM_TYPES


def test_readme_lists_the_exit_codes() -> None:
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)] == list(Exit)


def test_every_variable_is_documented() -> None:
    kinds = (MasterSettings, NodeSettings, WorkerSettings)
    fields = [field for kind in kinds for field in kind.model_fields.values()]
    table = re.findall(r"^\| `([A-Z_]+)` \|.*\| (.*?) \|$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    documented = dict(table)
    assert len(documented) == len(table), "each once"
    assert documented.keys() == {str(field.validation_alias) for field in fields}
    for field in fields:
        meaning = (field.description or "").rstrip(".")
        assert documented[str(field.validation_alias)] == meaning


def _definitions(path: Path) -> set[str]:
    """The names of a module's functions, classes and constants, and `Class.method` and `Class.attribute`."""
    top = ast.parse(path.read_text()).body
    inner = {f"{owner.name}.{name}" for owner in top if isinstance(owner, ast.ClassDef) for name in _names(owner.body)}
    return _names(top) | inner


def _names(body: list[ast.stmt]) -> set[str]:
    """The names that these statements define."""
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_path_through_the_code_names_what_exists() -> None:
    document = (ROOT / "docs/architecture.md").read_text()
    path = document.partition("## From `POST /jobs`")[2].partition("\n## ")[0]
    found = re.findall(r"`([\w/]+\.py)`: (\*?`[\w.]+`\*?(?:, \*?`[\w.]+`\*?(?!:))*)", path)
    assert len(found) >= 30
    for file, names in found:
        missing = set(re.findall(r"`([\w.]+)`", names)) - _definitions(ROOT / "services/rolecall" / file)
        assert not missing, f"docs/architecture.md: {file} does not define {', '.join(missing)}"
    assert path.count(".py`:") == len(found)


def test_the_short_path_through_the_code_takes_ten_minutes() -> None:
    document = (ROOT / "docs/architecture.md").read_text()
    path = document.partition("### In ten minutes")[2].partition("\n### ")[0]
    found = re.findall(r"`([\w/]+\.py)`: \*?`([\w.]+)`", path)
    assert len(found) >= 12
    words = len(path.split())
    for file, name in found:
        source = (ROOT / "services/rolecall" / file).read_text()
        words += len(_source_of(source, name).split())
    assert words / 250 * 60 + 8 * len(found) < 600


def _source_of(source: str, name: str) -> str:
    """The source of a function or a method."""
    body = ast.parse(source).body
    *classes, function = name.split(".")
    for one in classes:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == one)
    functions = (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    found = ast.get_source_segment(source, next(node for node in functions if node.name == function))
    assert found is not None
    return found


def _tutorials() -> dict[str, list[list[str]]]:
    """The rows of the table of each tutorial in docs/tutorials.md, as cells; by the section's title."""
    sections = (ROOT / "docs/tutorials.md").read_text().split("\n## ")[1:]
    tables = {section.partition("\n")[0]: re.findall(r"^\|(.*)\|$", section, re.MULTILINE) for section in sections}
    cells = {title: [re.split(r"(?<!\\)\|", row) for row in rows] for title, rows in tables.items() if rows}
    assert all([cell.strip() for cell in rows[0]][1:] == ["here", "code", "test"] for rows in cells.values())
    return {title: rows[2:] for title, rows in cells.items()}


@pytest.mark.parametrize("tutorial", _tutorials())
def test_every_technique_of_a_tutorial_names_its_code_and_test(tutorial: str) -> None:
    rows = _tutorials()[tutorial]
    assert len(rows) >= 10
    for row in rows:
        assert len(row) == 4, f"not four cells, or a | without a backslash: {'|'.join(row)}"
        technique, here, code, test = (cell.strip() for cell in row)
        assert technique
        assert here, technique
        assert _check_links(code, technique), f"{technique}: the code is missing"
        tests = _check_links(test, technique)
        assert any(name.startswith("test_") for name in tests), f"{technique}: the test is missing"
        if re.search("cuda|GPU|NCCL", technique + here):
            on_gpu = re.search(r"tests/gpu/\w+\.py\): `\w+` \(on (a GPU|two GPUs): [^)]+\)", test)
            assert on_gpu, f"{technique}: no test on a GPU, or not whether it has run"


def _check_links(cell: str, technique: str) -> set[str]:
    """The names after the links to Python files, [`file.py`](../path/file.py): `name`, which the files must define."""
    found = re.findall(r"\[`([^`]+)`\]\(([^)]+\.py)\): ((?:`[\w.]+`(?:, )?)+)", cell)
    assert len(found) == cell.count(".py)"), f"{technique}: a link without a name: {cell}"
    for shown, target, names in found:
        path = (ROOT / "docs" / target).resolve()
        assert target.endswith(shown), f"{technique}: {shown} links to {target}"
        missing = set(re.findall(r"`([\w.]+)`", names)) - _definitions(path)
        assert not missing, f"{technique}: {target} does not define {', '.join(missing)}"
    return {name for _, _, names in found for name in re.findall(r"`([\w.]+)`", names)}


def test_the_worked_example_is_shown_as_it_is() -> None:
    document = (ROOT / "docs/adding-a-workload.md").read_text()
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", document, re.DOTALL)
    folders = (ROOT / "examples/workload", ROOT / "examples/word2vec")
    found = [path for folder in folders for path in folder.rglob("*.*")]
    files = [path.read_text() for path in found if path.suffix in (".py", ".toml")]
    assert shown
    assert [block for block in shown if not any(block in text for text in files)] == []
    jobs = [json.loads(job) for job in re.findall(r"```json\n(.*?)```", document, re.DOTALL)]
    assert [job["workload"] for job in jobs] == ["word2vec", "kmeans"]
    assert all(job.keys() <= JobRequest.model_fields.keys() for job in jobs)


def test_the_documents_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text())
        assert [target for target in targets if not (page.parent / target).exists()] == [], page.name


def test_the_documents_links_lead_to_headings() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    anchors = {
        page: {_anchor(title) for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)} for page in pages
    }
    for page in pages:
        links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text())
        assert links or page.name not in {"operations.md", "kubernetes.md"}
        missing = [(target, anchor) for target, anchor in links if anchor not in anchors.get(_linked(page, target), ())]
        assert missing == [], page.name


def _anchor(title: str) -> str:
    """The anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _linked(page: Path, target: str) -> Path:
    return (page.parent / target).resolve() if target else page


def _texts(source: str) -> Iterator[str]:
    """The literal parts of all strings of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_messages_in_the_guides_are_those_of_the_code() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    tables = page[: page.index("## A job that is slow")] + next(
        line for line in page.splitlines() if "Landlock" in line
    )
    operations = (ROOT / "docs/operations.md").read_text()
    tables += "\n\n".join(re.findall(r"^\| message \|.*?\n\n", operations, re.MULTILINE | re.DOTALL))
    messages = [
        quoted for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE) for quoted in re.findall("`(.*?)`", row)
    ]
    messages += [" ".join(quoted.split()) for quoted in re.findall(r"\bline `(.*?)`", operations, re.DOTALL)]
    assert len(messages) > 25
    sources = (path.read_text() for path in (ROOT / "services/rolecall").rglob("*.py"))
    code = "\n".join(text.replace("`", "") for source in sources for text in _texts(source))
    foreign = {os.strerror(number).lower() for number in errno.errorcode} | {"rolecall: command not found"}
    for message in messages:
        if message in foreign:  # The kernel's and the shell's.
            continue
        for part in filter(None, (part.strip() for part in message.split("…"))):
            assert part in code, message
