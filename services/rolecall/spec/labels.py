"""Labels of jobs: names and values that users choose, with the rules of Kubernetes. Pure."""

from typing import Annotated

from pydantic import Field

from rolecall.spec.bounds import at_most

MAX_LABELS = 32
"""The maximum number of labels of a job."""
_WORD = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

LabelName = Annotated[str, Field(max_length=317, pattern=rf"^(?:{_DOMAIN}(?:\.{_DOMAIN})*/)?{_WORD}$")]
"""Up to 63 letters, digits, `-`, `_` and `.` that begin and end with a letter or digit. A DNS name and `/` can precede
them, as in `example.com/team`."""
LabelValue = Annotated[str, Field(max_length=63, pattern=f"^(?:{_WORD})?$")]
"""Likewise without a DNS name; can be empty."""
_bounded = (at_most(MAX_LABELS), Field(json_schema_extra={"maxProperties": MAX_LABELS}))
Labels = Annotated[dict[LabelName, LabelValue], *_bounded]
LabelChanges = Annotated[dict[LabelName, LabelValue | None], *_bounded]
"""Labels to set; null removes one."""
