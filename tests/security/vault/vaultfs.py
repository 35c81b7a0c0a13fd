# pyright: standard
"""A file system for fsspec whose URLs bear credentials: `vault://KEY:SECRET@store/path` is the local file `/path`."""

from typing import Any
from urllib.parse import urlsplit

from fsspec.implementations.local import LocalFileSystem


class VaultFileSystem(LocalFileSystem):
    """Names files by URLs with the credentials, as stores do."""

    protocol = "vault"

    def __init__(self, authority: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.authority = authority

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return urlsplit(path).path.rstrip("/") if path.startswith("vault://") else super()._strip_protocol(path)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"authority": urlsplit(path).netloc}

    def unstrip_protocol(self, name: str) -> str:
        return f"vault://{self.authority}{self._strip_protocol(name)}"
