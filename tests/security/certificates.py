"""A CA of the tests and what it signs, made by the command `openssl`."""

import subprocess
from pathlib import Path
from typing import NamedTuple

HOSTS = ("IP:127.0.0.1", "DNS:rolecall-master")


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def make_ca(folder: Path, name: str = "ca") -> Pair:
    """A certificate authority."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    subject = ("-subj", f"/CN={name} of the tests", "-days", "30")
    _openssl("req", "-x509", "-nodes", *_KEY, "-keyout", pair.key, "-out", pair.certificate, *subject, *extensions)
    return pair


def sign(ca: Pair, name: str = "master", hosts: tuple[str, ...] = HOSTS, days: int = 30) -> Pair:
    """A certificate for `hosts` that `ca` signed; with no `days` one that ended in 2020."""
    folder = ca.certificate.parent
    pair, request = Pair(folder / f"{name}.crt", folder / f"{name}.key"), folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={','.join(hosts)}\nextendedKeyUsage=serverAuth\n")
    _openssl("req", "-nodes", *_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
    if days > 0:
        signer = ("-CA", ca.certificate, "-CAkey", ca.key, "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, "-out", pair.certificate, *signer, "-days", days)
    else:
        _sign_of_old(ca, request, pair, extensions)
    return pair


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _sign_of_old(ca: Pair, request: Path, pair: Pair, extensions: Path) -> None:
    """`openssl x509` of before 3.4 can set no dates; `openssl ca` can."""
    folder = ca.certificate.parent
    (folder / "index.txt").write_text("")
    settings = folder / "ca.cnf"
    settings.write_text(
        f"[ca]\ndefault_ca=d\n[d]\ndatabase={folder}/index.txt\nnew_certs_dir={folder}\ndefault_md=sha256\n"
        "rand_serial=yes\npolicy=p\n[p]\ncommonName=supplied\n"
    )
    dates = ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
    given = ("-cert", ca.certificate, "-keyfile", ca.key, "-extfile", extensions, "-in", request)
    _openssl("ca", "-batch", "-notext", "-config", settings, *given, *dates, "-out", pair.certificate)


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
