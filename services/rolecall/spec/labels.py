"""Labels of jobs: names and values that users choose, with the rules of Kubernetes. Pure."""

from typing import Annotated

from pydantic import Field

from rolecall.spec.bounds import WITHOUT_SPACES, at_most, matching

MAX_LABELS = 32
"""The maximum number of labels of a job."""
_WORD = "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"

_RULE = "up to 63 letters, digits, '-', '_' and '.', with a letter or digit first and last"

LabelName = Annotated[
    str,
    Field(max_length=317),
    matching(rf"^(?:{_DOMAIN}(?:\.{_DOMAIN})*/)?{_WORD}$", f"{_RULE}, also after a DNS name and '/', such as team"),
    WITHOUT_SPACES,
]
"""For example `team` or `example.com/team`."""
LabelValue = Annotated[
    str,
    Field(max_length=63),
    matching(f"^(?:{_WORD})?$", f"nothing, or {_RULE}, such as data-science"),
    WITHOUT_SPACES,
]
_bounded = (at_most(MAX_LABELS), Field(json_schema_extra={"maxProperties": MAX_LABELS}))
Labels = Annotated[dict[LabelName, LabelValue], *_bounded]
LabelChanges = Annotated[dict[LabelName, LabelValue | None], *_bounded]
"""Labels to set; null removes one."""
