"""What an examination of the cluster's network has found."""

from rolecall.spec.bounds import Text
from rolecall.spec.finding import Finding


class NodeFinding(Finding):
    """A finding, and whom it is about."""

    nodes: tuple[Text, ...]
    """One node, or the two ends of a way: first the one that calls, where that matters."""
