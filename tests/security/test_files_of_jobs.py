"""A job reads files below the operator's data roots and nothing else, however it names them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.cpu_time import is_within

from rolecall.kit.data_access import DataAccess
from rolecall.kit.files import find
from rolecall.kit.images.params import Idx
from rolecall.kit.images.sources import check_source, open_source
from rolecall.master.catalogue import load
from rolecall.settings.child_environments import for_nodes, for_workers
from rolecall.settings.worker import WorkerSettings
from rolecall.spec.errors import InputError, InvalidJob
from rolecall.spec.job import JobRequest
from rolecall.spec.role import Role
from rolecall.spec.workload import Params
from rolecall.workloads import catalogue

SECRET = "0123456789abcdef"
ROLES = {"rnn-lm": Role.TRAINER, "embedding-ddp": Role.TRAINER}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only data root; the working directory is elsewhere."""
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "data"


@pytest.fixture
def secret(tmp_path: Path, root: Path) -> Path:
    """A file outside, like a mounted secret."""
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o400)
    return path


def job(workload: str, path: str) -> Params:
    """The parameters of a job that reads `path`."""
    column = {"label": "x", "categorical": ["y"]}
    params = {"data": {"train": path, **column}} if workload == "embedding-ddp" else {"text": {"train": path}}
    return catalogue.load(workload).params.model_validate(params)


def refusal(path: str, workload: str = "rnn-lm") -> str:
    check = catalogue.load(workload).check_node
    assert check is not None
    with pytest.raises(InputError) as caught:
        check(job(workload, path), ROLES[workload])
    return str(caught.value)


def spellings(secret: Path, root: Path) -> list[str]:
    """Ways to say `secret` that all lead there."""
    (root / "link").symlink_to(secret)
    (root / "way").symlink_to(secret.parent)
    (root / "sub").mkdir()
    return [
        str(secret),
        secret.as_uri(),
        f"local://{secret}",
        f"file:/{secret.as_uri()[6:]}",
        str(root / "link"),
        str(root / "way" / "token"),
        str(root / "sub" / ".." / ".." / "token"),
        "../token",
        f"file://{root}/../token",
        f"{root}/li*",
        f"{root}/way/tok*",
        f"{root}/../tok[e]n",
        f"{secret.parent}/tok*",
    ]


@pytest.mark.parametrize("workload", ROLES)
def test_no_spelling_of_a_path_outside_is_read(secret: Path, root: Path, workload: str) -> None:
    for path in spellings(secret, root):
        said = refusal(path, workload)
        assert f"(ROLECALL_DATA_ROOTS): {root};" in said, path
        assert SECRET not in said


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/root/etc/passwd",
        "/dev/fd/0",
        "/sys/kernel/notes",
        "/run/secrets/node/token",
        "/etc/pass*",
        "/var/lib/rolecall/rolecall.db",
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "/no/such/file",
    ],
)
def test_the_machines_files_are_not_read(root: Path, path: str) -> None:
    said = refusal(path)
    assert "(ROLECALL_DATA_ROOTS)" in said
    assert "exist" not in said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("simplecache::file:///etc/passwd", "chains URLs"),
        ("filecache::/etc/passwd", "chains URLs"),
        ("zip://passwd::file:///etc/x.zip", "chains URLs"),
        ("dir::file:///etc/passwd", "chains URLs"),
        ("reference://::/etc/passwd", "chains URLs"),
        ("reference:///etc/passwd", "may not read reference: URLs"),
        ("dir:///etc/passwd", "may not read dir: URLs"),
        ("http://169.254.169.254/latest/meta-data", "may not read http: URLs"),
        ("s3://bucket/key", "ROLECALL_DATA_SCHEMES): none"),
        ("FILE:///etc/passwd", "may not read FILE: URLs"),
        ("c://etc/passwd", "may not read c: URLs"),
        ("data:text/plain;base64,YQ==", "may not read data: URLs"),
        ("~/.ssh/id_ed25519", "is not expanded"),
        ("file://~/.ssh/id_ed25519", "is not expanded"),
        ("/data/a\0b", "NUL"),
    ],
)
def test_forms_that_are_refused(root: Path, path: str, said: str) -> None:
    assert said in refusal(path)
    with pytest.raises(InvalidJob) as caught:
        load().check_request(JobRequest(workload="rnn-lm", params={"text": {"train": path}}))
    (field_error,) = caught.value.field_errors
    assert field_error["field"] == "params.text.train.0"
    assert said in field_error["message"]


def test_a_file_below_a_root_is_read_by_any_of_its_names(root: Path, tmp_path: Path) -> None:
    (root / "a.txt").write_text("text")
    (root / "link.txt").symlink_to("a.txt")
    (tmp_path / "alias").symlink_to(root)
    for path in (root / "a.txt", (root / "a.txt").as_uri(), "../data/a.txt", tmp_path / "alias/a.txt", root / "[a]*"):
        (file,) = find([str(path)])
        with file.open() as opened:
            assert opened.read() == b"text"
    assert [Path(file.url).name for file in find([f"{root}/*.txt"])] == ["a.txt", "link.txt"]


def test_a_root_may_be_a_link(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a.txt").write_text("text")
    (tmp_path / "alias").symlink_to(root)
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path / "alias"))
    assert find([str(tmp_path / "alias/a.txt")])
    assert find([str(root / "a.txt")])


def test_schemes_that_the_operator_allows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_DATA_SCHEMES", "memory, s3")
    assert "memory://nothing does not exist" in refusal("memory://nothing")
    assert "chains URLs" in refusal("memory://nothing::file:///etc/passwd")
    assert "ROLECALL_DATA_SCHEMES): memory, s3" in refusal("gs://bucket/key")


@pytest.mark.parametrize(
    ("roots", "closed_data", "path", "held"),
    [
        ("/", "/srv/rolecall", "/home/me/a", True),
        ("/", "/srv/rolecall", "/proc/1/environ", False),
        ("/", "/srv/rolecall", "//proc/1/environ", False),
        ("/", "/srv/rolecall", "/./proc//1/environ", False),
        ("/", "/srv/rolecall", "/run/secrets/token", False),
        ("/", "/srv/rolecall", "/srv/rolecall/rolecall.db", False),
        ("/run/media/disk", "/srv/rolecall", "/run/media/disk/a", True),
        ("/run/media/disk", "/srv/rolecall", "/run/media/other", False),
        ("/srv/rolecall/data", "/srv/rolecall", "/srv/rolecall/data/a", True),
        ("/srv/rolecall/data", "/srv/rolecall", "/srv/rolecall/blobs/a", False),
        ("/data", "/srv/rolecall", "/database/a", False),
        ("/data/", "/srv/rolecall", "/data/./x/../a", True),
        ("", "/srv/rolecall", "/data/a", True),
        ("", "/srv/rolecall", "/opt/rolecall/examples/data/a", True),
    ],
)
def test_the_deepest_folder_decides(
    monkeypatch: pytest.MonkeyPatch, roots: str, closed_data: str, path: str, held: bool
) -> None:
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", roots)
    monkeypatch.setenv("ROLECALL_DATA", closed_data)
    access = DataAccess.of(WorkerSettings())
    if held:
        access.check_written(path)
        access.resolve(path)
        return
    with pytest.raises(InputError):
        access.check_written(path)
    with pytest.raises(InputError):
        access.resolve(path)


@pytest.mark.parametrize(
    "roots", ["/", "/home/me", "/home/me/.config/rolecall", "/home/me/.config/rolecall/local-1.json"]
)
def test_no_root_opens_the_connection_file_or_a_secret(monkeypatch: pytest.MonkeyPatch, roots: str) -> None:
    """Nor in a worker, which has its own `XDG_CONFIG_HOME` and lacks the variables that name the files."""
    secrets = {"ROLECALL_TOKEN_FILE": "/home/me/admin", "ROLECALL_NODE_TOKEN_FILE": "/home/me/node"}
    shell = {"XDG_CONFIG_HOME": "/home/me/.config", "ROLECALL_TLS_KEY": "/home/me/key.pem", **secrets}
    worker = for_workers(for_nodes(shell)) | {"XDG_CONFIG_HOME": "/scratch", "ROLECALL_DATA_ROOTS": roots}
    assert not secrets.keys() & worker.keys()
    for name, value in worker.items():
        monkeypatch.setenv(name, value)
    access = DataAccess.of(WorkerSettings())
    for path in (".config/rolecall/local-1.json", ".config/rolecall/.local-1.json.7", "admin", "node", "key.pem"):
        with pytest.raises(InputError):
            access.check_written(f"/home/me/{path}")
        with pytest.raises(InputError):
            access.resolve(f"/home/me/{path}")
    if roots in {"/", "/home/me"}:
        access.resolve("/home/me/.config/other")


def test_a_link_to_the_connection_file_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / "config"))
    (root / "private").mkdir()
    (root / "private/local.json").write_text(SECRET)
    (root / "config").mkdir()
    (root / "config/rolecall").symlink_to(root / "private")
    (root / "rows").symlink_to(root / "private/local.json")
    for path in (root / "config/rolecall/local-1.json", root / "private/local.json", root / "rows", root / "r*"):
        assert "ROLECALL_DATA_ROOTS" in refusal(str(path))


def swap(path: Path, target: Path) -> None:
    """Put a link in a file's place, at once."""
    fresh = path.with_name("fresh")
    fresh.symlink_to(target)
    fresh.rename(path)


def test_a_link_that_appears_after_the_check_is_not_followed(root: Path, secret: Path) -> None:
    path = root / "a.txt"
    path.write_text("text")
    (file,) = find([str(path)])
    swap(path, secret)
    with pytest.raises(InputError, match="ROLECALL_DATA_ROOTS"):
        file.open()


@pytest.mark.parametrize("swapped", ["a.txt", "sub"])
def test_a_race_between_check_and_open_is_lost(
    root: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    (root / "sub").mkdir()
    path = root / "sub" / "token" if swapped == "sub" else root / "a.txt"
    path.write_text("text")
    resolve = DataAccess.resolve

    def slow(self: DataAccess, path: str) -> str:
        real = resolve(self, path)
        if swapped == "sub":
            (root / "sub").rename(root / "gone")
            (root / "sub").symlink_to(secret.parent)
        else:
            swap(root / "a.txt", secret)
        return real

    (file,) = find([str(path)])
    monkeypatch.setattr(DataAccess, "resolve", slow)
    with pytest.raises(InputError):
        file.open()


def test_a_pipe_blocks_nobody(root: Path) -> None:
    os.mkfifo(root / "pipe.txt")
    (root / "a.txt").write_text("text")
    (file,) = find([str(root / "a.txt")])
    (root / "a.txt").unlink()
    os.mkfifo(root / "a.txt")
    said: list[str] = []

    def read() -> None:
        try:
            file.open()
        except InputError as error:
            said.append(str(error))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert said == [f"{root}/a.txt is not a regular file"]


def classes(folder: Path) -> Path:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        Image.new("L", (16, 16)).save(folder / name / "1.png")
    return folder


def hide_class(folder: Path, outside: Path) -> None:
    (folder / "c").symlink_to(outside)


def hide_image(folder: Path, outside: Path) -> None:
    (folder / "a" / "0.png").symlink_to(outside / "a" / "1.png")


@pytest.mark.parametrize("hide", [hide_class, hide_image])
def test_folders_of_images_lead_nowhere_else(root: Path, tmp_path: Path, hide: Callable[[Path, Path], None]) -> None:
    outside, inside = classes(tmp_path / "outside"), classes(root / "inside")
    assert len(open_source(str(inside)).labels) == 2
    with pytest.raises(InputError, match="ROLECALL_DATA_ROOTS"):
        check_source(str(outside))
    hide(inside, outside)
    for look in (check_source, open_source):
        with pytest.raises(InputError, match="ROLECALL_DATA_ROOTS"):
            look(str(inside))


def test_an_image_that_becomes_a_link_is_not_read(root: Path, tmp_path: Path) -> None:
    inside, outside = classes(root / "inside"), classes(tmp_path / "outside")
    source = open_source(str(inside))
    (inside / "a" / "1.png").unlink()
    (inside / "a" / "1.png").symlink_to(outside / "a" / "1.png")
    with pytest.raises(InputError, match="ROLECALL_DATA_ROOTS"):
        source.image(0)


def test_only_formats_that_no_program_must_read_are_images(root: Path) -> None:
    inside = classes(root / "inside")
    (inside / "a" / "1.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with pytest.raises(InputError, match="can't be read as an image"):
        open_source(str(inside)).image(0)


def test_idx_files_lie_below_a_root(root: Path, secret: Path) -> None:
    with pytest.raises(InputError, match="ROLECALL_DATA_ROOTS"):
        check_source(Idx(images=str(secret), labels=str(root / "labels")))


def field_errors(workload: str, params: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidJob) as caught:
        load().check_request(JobRequest(workload=workload, params=params))
    return {
        field_error["field"]: f"{field_error['message']} | {field_error['legal']}"
        for field_error in caught.value.field_errors
    }


def test_the_master_names_every_field_and_the_roots(root: Path) -> None:
    text = {"train": ["/etc/passwd", str(root / "a")], "validation": "/data/../etc/shadow", "test": "s3://a/b"}
    found = field_errors("transformer-pipeline", {"text": text})
    assert list(found) == ["params.text.train.0", "params.text.validation.0", "params.text.test.0"]
    assert f"(ROLECALL_DATA_ROOTS): {root};" in found["params.text.train.0"]
    assert found["params.text.train.0"].endswith(f"| a path below {root}")
    assert "ROLECALL_DATA_SCHEMES" in found["params.text.test.0"]
    images = {"train": "/etc", "test": {"images": "/etc/passwd", "labels": str(root / "labels")}}
    assert list(field_errors("resnet-pipeline", {"data": images})) == ["params.data.train", "params.data.test.images"]
    rows = {"train": "/etc/passwd", "label": "a", "categorical": ["b"]}
    assert list(field_errors("embedding-ddp", {"data": rows})) == ["params.data.train.0"]


def test_thousands_of_paths_are_checked_in_a_moment(root: Path) -> None:
    started = time.process_time()
    found = field_errors("rnn-lm", {"text": {"train": ["/etc/passwd" + "/x" * 40] * 10_000}})
    assert len(found) == 20
    load().check_request(JobRequest(workload="rnn-lm", params={"text": {"train": [f"{root}/x/../x"] * 10_000}}))
    assert is_within(time.process_time() - started, 2)
    too_many = field_errors("rnn-lm", {"text": {"train": ["a"] * 50_001}})
    assert "50,000" in "".join(too_many.values()), too_many


def test_what_only_a_node_can_know_the_master_leaves_to_it(root: Path) -> None:
    for path in ("relative/a.txt", "../a.txt", str(root / "not/there"), f"file://{root}/a", str(root / "*" / "b*")):
        load().check_request(JobRequest(workload="rnn-lm", params={"text": {"train": path}}))
