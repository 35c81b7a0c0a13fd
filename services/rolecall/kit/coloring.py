"""The colors of bars in pictures, and their legend. Pure: values in, text out.

The colors follow the reader's light or dark mode.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from rolecall.kit.pipelining import Kind
from rolecall.spec.timeline import Span

_KINDS: Mapping[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "F": ("forward", [("#0969da", "#58a6ff"), ("#90bbee", "#2f547f"), ("#cee1f8", "#1e324a")]),
    "B": ("backward", [("#1a7f37", "#3fb950"), ("#98c5a5", "#245d31"), ("#d1e5d7", "#183624")]),
    "I": ("backward for inputs", [("#1b7c83", "#39c5cf"), ("#98c4c7", "#216269"), ("#d1e5e6", "#17393f")]),
    "W": ("backward for weights", [("#8250df", "#bc8cff"), ("#c7b0f1", "#5c487f"), ("#e6dcf9", "#332c4a")]),
    "compute": (
        "compute",
        [("#0a3069", "#a5d6ff"), ("#79bbff", "#2a69ba"), ("#c9e6ff", "#12315a"), ("#3d8fdb", "#1b4b82")],
    ),
    "communication": ("communication", [("#bc4c00", "#f0883e"), ("#ffb37a", "#9a4a00"), ("#ffdfc4", "#5a2b00")]),
    "wait": ("wait", [("#afb8c1", "#484f58")]),
    "data": ("data", [("#7d5c00", "#d4a72c")]),
    "checkpoint": ("checkpoint", [("#bf3989", "#f778ba")]),
    "evaluation": ("evaluation", [("#6639ba", "#d2a8ff")]),
}
"""The meaning of each kind of bar, and its colors in light and dark mode: for a pass through the first, second and
third stage of a rank, for phases of one category. They differ in brightness, so that color-blind readers can tell
them apart. Further colors are paler in light mode, and darker in dark mode."""
PASSES = frozenset(get_args(Kind))
"""The kinds that are passes through a stage."""
_PASS_PHASES: Mapping[str, str] = {"forward": "F", "backward": "B"}
"""The kinds of passes whose colors computations with these names have, so that they look alike in all pictures."""


def _class(kind: str, place: int) -> str:
    """The class of the bars of a kind in one of its colors."""
    return f"{kind}-{place}"


def _classes(kind: str) -> list[str]:
    return [_class(kind, place) for place in range(len(_KINDS[kind][1]))]


PALE = {"wait-0"} | {name for kind in _KINDS for name in _classes(kind)[1:]}
"""The classes whose labels have the color of other text."""


def _colors(*, dark: bool) -> str:
    ground, text, faint = ("#0d1117", "#e6edf3", "#8b949e") if dark else ("#ffffff", "#1f2328", "#59636e")
    bars = "".join(
        f".{name}{{fill:{pair[dark]}}}"
        for kind, (_, colors) in _KINDS.items()
        for name, pair in zip(_classes(kind), colors, strict=True)
    )
    label = "#0d1117" if dark else "#ffffff"
    return (
        f".ground{{fill:{ground}}}text{{fill:{text}}}.faint{{fill:{faint}}}.grid{{stroke:{faint};stroke-opacity:.3}}"
        f".label{{fill:{label};text-anchor:middle}}.label.on-pale{{fill:{text}}}{bars}"
    )


STYLE = f"{_colors(dark=False)}@media(prefers-color-scheme:dark){{{_colors(dark=True)}}}"
"""The style of every picture. It is constant, so that a content security policy can allow it by its digest."""


class LegendEntry(NamedTuple):
    """Classes of bars and their meaning, or the heading of the entries that follow."""

    classes: Sequence[str]
    meaning: str
    starts_group: bool = False
    """True if the entry has nothing to do with the heading before it."""


@dataclass(frozen=True, slots=True)
class Coloring:
    """The colors that distinguish the stages of a rank, and the phases of a category."""

    stages: Mapping[int, int]
    """The place of each virtual stage among those of its rank; empty if each rank has one stage."""
    phases: Mapping[tuple[str, str], int]
    """The place of each phase, a category and a name, among the colors of its category."""

    @classmethod
    def of(cls, stages: Iterable[Iterable[int]], spans: Iterable[Span] = ()) -> "Coloring":
        """The coloring of ranks with these stages and of these phases. The longest phases have colors of their own."""
        own = [sorted(set(one)) for one in stages]
        several = any(len(one) > 1 for one in own)
        seconds = defaultdict[tuple[str, str], float](float)
        for span in spans:
            if span.name not in PASSES and _phase_kind(span) is None:
                seconds[span.category, span.name] += span.seconds
        phases = dict[tuple[str, str], int]()
        for category in {category for category, _ in seconds}:
            last = len(_KINDS[category][1]) - 1
            longest = sorted((one for one in seconds if one[0] == category), key=lambda one: (-seconds[one], one))
            alone = longest if len(longest) <= last + 1 else longest[:last]
            # In alphabetical order, so that they have the same colors in the next picture.
            phases |= dict.fromkeys(longest, last) | {phase: place for place, phase in enumerate(sorted(alone))}
        return cls({stage: place for one in own for place, stage in enumerate(one)} if several else {}, phases)

    def of_pass(self, kind: str, stage: int | None) -> str:
        """The class of a pass."""
        return _class(kind, self.stages.get(-1 if stage is None else stage, 0) % len(_KINDS[kind][1]))

    def of_span(self, span: Span) -> str:
        """The class of a phase or pass."""
        if span.name in PASSES:
            return self.of_pass(span.name, span.stage)
        if kind := _phase_kind(span):
            return _class(kind, 0)
        return _class(span.category, self.phases[span.category, span.name])

    def label(self, name: str, stage: int | None, micro_batch: int | None) -> str:
        """Such as `F3`, or `4F3` if ranks have several stages."""
        before = stage if self.stages and name in PASSES else None
        return "".join(str(part) for part in (before, name, micro_batch) if part is not None)

    def legend(self, used: Collection[str]) -> Iterator[LegendEntry]:
        """The meaning of the colors of bars of the classes `used`."""
        passes = [kind for kind in _KINDS if kind in PASSES and any(name in used for name in _classes(kind))]
        for kind in passes:
            yield LegendEntry([name for name in _classes(kind) if name in used], _KINDS[kind][0])
        for place in range(min(len(_KINDS["F"][1]), 1 + max(self.stages.values(), default=-1))):
            those = sorted(stage for stage, its in self.stages.items() if its % len(_KINDS["F"][1]) == place)
            yield LegendEntry([_class(kind, place) for kind in passes], f"stages {_ranges(those)}")
        for category, (meaning, _) in _KINDS.items():
            names = defaultdict[int, list[str]](list)
            for (its, name), place in sorted(self.phases.items()):
                if its == category:
                    names[place].append(name)
            if len(names) > 1:
                yield LegendEntry([], f"{meaning}:", starts_group=True)
                for place, those in sorted(names.items()):
                    yield LegendEntry([_class(category, place)], those[0] if len(those) == 1 else "others")
            elif names:
                yield LegendEntry([_class(category, 0)], meaning, starts_group=True)


def _phase_kind(span: Span) -> str | None:
    return _PASS_PHASES.get(span.name) if span.category == "compute" else None


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, such as `0–3, 8–11`."""
    known = set(numbers)
    firsts = [one for one in numbers if one - 1 not in known]
    lasts = [one for one in numbers if one + 1 not in known]
    return ", ".join(str(one) if one == last else f"{one}–{last}" for one, last in zip(firsts, lasts, strict=True))
