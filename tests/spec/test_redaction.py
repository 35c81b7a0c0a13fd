"""No credential of a URL is shown, and nothing else is changed."""

import logging
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.edge.logs import log_to_stderr
from rolecall.spec.redaction import redact, redact_text

KEY, SECRET = "AKIAKEY", "hush+hush"


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        (f"s3://{KEY}:{SECRET}@bucket/a/*.csv", "s3://***@bucket/a/*.csv"),
        (f"s3://{KEY}:with/slashes/{SECRET}@bucket/a", "s3://***@bucket/a"),
        (f"postgresql://me:{SECRET}@db:5432/name", "postgresql://***@db:5432/name"),
        (f"https://{KEY}@host/x", "https://***@host/x"),
        (f"https://me:p@{SECRET}@host:8443/x", "https://***@host:8443/x"),
        (f"https://host/x?token={SECRET}&part=2", "https://host/x?token=***&part=***"),
        (f"https://host/x?a={SECRET};b={SECRET}#top", "https://host/x?a=***;b=***#top"),
        (f"simplecache::s3://{KEY}:{SECRET}@bucket/a", "simplecache::s3://***@bucket/a"),
        (f"zip://a.csv::https://me:{SECRET}@host/a.zip", "zip://a.csv::https://***@host/a.zip"),
        (f"'s3://a:{SECRET}@b/c' and https://d:{SECRET}@e.", "'s3://***@b/c' and https://***@e."),
        (f'{{"url": "s3://a:{SECRET}@b/c"}}', '{"url": "s3://***@b/c"}'),
    ],
)
def test_credentials_are_hidden(given_text: str, shown: str) -> None:
    assert redact_text(given_text) == shown
    assert redact_text(shown) == shown
    assert redact({"data": [{"train": given_text}, 3, None], given_text: 1}) == {
        "data": [{"train": shown}, 3, None],
        shown: 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/folder@v2/*.csv",
        "https://host:8443/a/b@c",
        "http://[::1]:8080/jobs/a@b",
        "file:///data/train.csv",
        "memory://",
        "me@host: see /data/a@b or mail me@example.com",
        "module:function",
        "what is this? a=b",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact_text(text) == text


@settings(max_examples=50, deadline=None)
@given(
    st.text(max_size=40),
    st.from_regex(r"[A-Za-z0-9+%._~-]{8,20}", fullmatch=True),
    st.sampled_from(["s3", "https", "x::ftp"]),
)
def test_no_secret_is_shown_wherever_the_url_stands(around: str, secret: str, scheme: str) -> None:
    for url in (f"{scheme}://k:{secret}@host/x", f"{scheme}://host/x?k={secret}"):
        assert f"k:{secret}" not in redact_text(f"{around}\n{url} {around}")
        assert f"k={secret}" not in redact_text(f"{around}\n{url} {around}")


def test_logs_show_no_credentials_in_lines_and_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log_to_stderr()
        try:
            raise ValueError(f"no s3://{KEY}:{SECRET}@bucket/a")
        except ValueError:
            logging.getLogger("test").exception("reading %s", f"https://host/?sig={SECRET}")
    finally:
        root.handlers[:], root.level = before, level
    said = capsys.readouterr().err
    assert "reading https://host/?sig=***" in said
    assert "no s3://***@bucket/a" in said
    assert SECRET not in said


@pytest.mark.timeout(10)
@pytest.mark.parametrize("one", ["x", "://", "a:", "@", "::", "?a=", "x://", "x::", "&", "[", "/"])
def test_a_long_text_costs_no_more_than_its_length(one: str) -> None:
    """Workers' texts are redacted by master and node, whose loops must not stand still."""
    begin = time.process_time()
    redact_text("x://" + one * ((1 << 18) // len(one)))
    redact_text("://" + one * ((1 << 18) // len(one)))
    assert time.process_time() - begin < 2
