"""Examples in the documentation are executed, and its statements are compared with the code."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.conftest import Cluster

from rolecall.cli.exits import Exit
from rolecall.settings import MasterSettings, NodeSettings, WorkerSettings
from rolecall.spec.job import JobRequest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_readme_example(example: str, cluster: Cluster) -> None:
    done = subprocess.run(["bash", "-c", example], cwd=ROOT, env=cluster.environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


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
    """The names of a module's functions and classes, and `Class.method`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, kinds)]
    inner = [(owner, node) for owner in top for node in owner.body if isinstance(node, kinds)]
    return {node.name for node in top} | {f"{owner.name}.{node.name}" for owner, node in inner}


def test_the_path_through_the_code_names_what_exists() -> None:
    document = (ROOT / "docs/architecture.md").read_text()
    path = document.partition("## From `POST /jobs`")[2].partition("\n## ")[0]
    found = re.findall(r"`([\w/]+\.py)`: (\*?`[\w.]+`\*?(?:, \*?`[\w.]+`\*?(?!:))*)", path)
    assert len(found) >= 30
    for file, names in found:
        missing = set(re.findall(r"`([\w.]+)`", names)) - _definitions(ROOT / "services/rolecall" / file)
        assert not missing, f"docs/architecture.md: {file} does not define {', '.join(missing)}"
    assert path.count(".py`:") == len(found)


def test_the_worked_example_is_shown_as_it_is() -> None:
    document = (ROOT / "docs/adding-a-workload.md").read_text()
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", document, re.DOTALL)
    folders = (ROOT / "examples/workload", ROOT / "examples/word2vec")
    found = [path for folder in folders for path in folder.rglob("*.*")]
    files = [path.read_text() for path in found if path.suffix in (".py", ".toml")]
    assert shown
    assert [block for block in shown if not any(block in text for text in files)] == []
    given = json.loads(re.findall(r"```json\n(.*?)```", document, re.DOTALL)[0])
    assert given.keys() <= JobRequest.model_fields.keys()


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
