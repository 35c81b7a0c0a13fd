"""Placement of gangs on nodes. Pure.

`seats` assigns the workers of one gang to nodes, CPU shares and GPUs. This module decides for the whole gang, or
explains why it has to wait.

A node with a loopback address shares a gang only with nodes in its own network namespace, because no other node can
reach its workers.

Equal shapes have equal outcomes. A `Cluster` computes once per shape what depends only on the nodes, and a `Seating`
what depends on the occupied seats as well. A thousand waiting jobs of five shapes need five searches, and none while
nothing changes. A shape that doesn't fit even if nothing runs needs no further search when seats change.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from rolecall.master.bounded_cache import BoundedCache
from rolecall.master.seats import Counts, Flow, Need, Offers, Seat, occupied_seat
from rolecall.spec.node import NodeSpec, NodeState
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import RANK_ORDER, Role

Shape = frozenset[tuple[Need, int]]
"""Everything that determines the placement of a gang, given the nodes and the occupied seats."""
_MAX_NAMES = 4
_MOST_AVOIDED = 64
"""The number of sets of nodes to avoid for which results are cached."""


class WaitCause(StrEnum):
    """The cause of a queued job's wait."""

    SLOTS = "slots"
    TURN = "turn"
    """A later pass of the placement."""
    EARLIER_JOB = "earlier-job"
    """Another job that goes first."""
    NODES = "nodes"
    LIMIT = "limit"
    """Other jobs of its owner."""
    WORKLOAD = "workload"
    """The master does not know its workload."""
    BACK_OFF = "back-off"
    """The pause after a failed attempt."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a gang can't be placed now."""

    reason: str
    feasible: bool
    """True if the gang would fit if nothing else ran."""
    gist: str = ""
    """The reason without figures that change all the time, if it has any."""
    cause: WaitCause = WaitCause.SLOTS

    @property
    def lasting(self) -> str:
        """The reason to store, which changes only if the job waits for something else."""
        return self.gist or self.reason


Outcome = GangPlan | Waiting


def needs_of(roles: Mapping[Role, int], resources: Mapping[Role, Resources] = MappingProxyType({})) -> dict[Need, int]:
    """The number of workers of a gang by what each needs, in rank order."""
    return {Need.of(role, resources.get(role)): roles[role] for role in RANK_ORDER if roles.get(role, 0)}


class Cluster:
    """The nodes at one point in time. Caches what it computes."""

    def __init__(self, nodes: Iterable[NodeState], avoid: Collection[str] = ()) -> None:
        self.nodes = tuple(nodes)
        self.live_nodes = [node for node in self.nodes if node.alive]
        accepting = [node.spec for node in self.live_nodes if node.obstacle is None and node.spec.name not in avoid]
        self.offers = Offers(accepting)
        self.reachable_groups = _reachable_groups(self.offers)
        self.specs = {node.spec.name: node.spec for node in self.nodes}
        self._live_offers = Offers(node.spec for node in self.live_nodes)
        self._devices = BoundedCache[Need, frozenset[bool]]()
        self._totals = BoundedCache[Need, int]()
        self._alone = BoundedCache[Shape, tuple[bool, int]]()
        self._idle = Seating(self, ())
        self._seating: tuple[tuple[WorkerPlan, ...], Seating] | None = None
        self._without = BoundedCache[frozenset[str], Cluster](_MOST_AVOIDED)

    def without(self, avoid: frozenset[str]) -> "Cluster":
        """The same cluster without offers of the nodes in `avoid`, whose workers still use their machines."""
        return self._without.computed(avoid, lambda: Cluster(self.nodes, avoid))

    def seating(self, taken: Sequence[WorkerPlan]) -> "Seating":
        """The seating with `taken` occupied. Caches the last one."""
        taken = tuple(taken)
        if self._seating is None or self._seating[0] != taken:
            self._seating = taken, Seating(self, self.seats(taken))
        return self._seating[1]

    def seats(self, workers: Iterable[WorkerPlan]) -> list[Seat]:
        """The seats of `workers`, including those on nodes without offers, because machines share pools."""
        return [occupied_seat(self.specs[worker.node], worker) for worker in workers if worker.node in self.specs]

    def devices(self, need: Need) -> frozenset[bool]:
        """True if such a worker would get a GPU, False if a CPU share; nodes of its role can differ."""
        return self._devices.computed(
            need, lambda: frozenset(need.takes_gpu(node.spec) for node in self.nodes if node.spec.role is need.role)
        )

    def total(self, need: Need) -> int:
        """The capacity of all live nodes for such workers, including nodes that accept no workers now."""
        return self._totals.computed(need, lambda: Flow(self._live_offers, ()).room(need))

    def alone(self, wanted: Counts) -> tuple[bool, int]:
        """Return whether the gang fits if nothing else runs, and how many of its workers then get a seat.

        All workers can get a seat and yet not fit: if they don't reach each other.
        """
        shape = frozenset(wanted.items())
        if shape not in self._alone:
            if any(count > self._idle.room(need) for need, count in wanted.items()):
                self._alone[shape] = False, 0  # Too many of one role, so nobody asks for the number.
            else:
                flow, fits = self._idle.fill(wanted)
                self._alone[shape] = fits, flow.seated.total()
        return self._alone[shape]

    def fits_alone(self, wanted: Counts) -> bool | None:
        """The first value of `alone`, or None if it needs a search."""
        if any(count > self._idle.room(need) for need, count in wanted.items()):
            return False
        return self._alone.get(frozenset(wanted.items()), (None, 0))[0]


class Seating:
    """A cluster with occupied seats. Caches what it computes."""

    def __init__(self, cluster: Cluster, occupied: Sequence[Seat]) -> None:
        self._cluster = cluster
        self._occupied = occupied
        self._rooms = BoundedCache[Need, int]()
        self._outcomes = BoundedCache[Shape, Outcome](4096)  # Plans can be large.
        self._elsewhere = BoundedCache[frozenset[str], Seating](_MOST_AVOIDED)

    def place(self, wanted: Counts, avoid: Collection[str] = ()) -> Outcome:
        """The plan of a gang (see `needs_of`), or the reason why it can't be placed.

        The plan avoids the nodes in `avoid` if possible.
        """
        if avoid and isinstance(elsewhere := self._without(frozenset(avoid)).place(wanted), GangPlan):
            return elsewhere
        return self._outcomes.computed(frozenset(wanted.items()), lambda: self._search(wanted))

    def needs_search(self, wanted: Counts, avoid: Collection[str] = ()) -> bool:
        """Return whether `place` has to search for seats."""
        if avoid and self._without(frozenset(avoid)).needs_search(wanted):
            return True
        if frozenset(wanted.items()) in self._outcomes:
            return False
        feasible = self._cluster.fits_alone(wanted)
        return feasible is None or (feasible and all(count <= self.room(need) for need, count in wanted.items()))

    def after(self, workers: Iterable[WorkerPlan]) -> "Seating":
        """The seating with the seats of `workers` occupied as well."""
        return Seating(self._cluster, [*self._occupied, *self._cluster.seats(workers)])

    def room(self, need: Need) -> int:
        """The number of additional workers that fit, if all need the same."""
        return self._rooms.computed(need, lambda: Flow(self._cluster.offers, self._occupied).room(need))

    def fill(self, wanted: Counts) -> tuple[Flow, bool]:
        """Search for seats. Returns True, and the seats, if the whole gang fits on nodes that reach each other.

        Otherwise the seats are those on all nodes.
        """
        groups = self._cluster.reachable_groups
        for offers in groups:
            flow = Flow(offers, self._occupied)
            fits = not flow.fill(wanted)
            if fits or len(groups) == 1:
                return flow, fits
        flow = Flow(self._cluster.offers, self._occupied)
        flow.fill(wanted)
        return flow, False

    def _without(self, avoid: frozenset[str]) -> "Seating":
        return self._elsewhere.computed(avoid, lambda: Seating(self._cluster.without(avoid), self._occupied))

    def _search(self, wanted: Counts) -> Outcome:
        cluster = self._cluster
        feasible, seated = cluster.alone(wanted)
        # If the workers of one role alone don't fit, a search is unnecessary.
        short = {need: count for need, count in wanted.items() if count > self.room(need)}
        if feasible and not short:
            flow, fits = self.fill(wanted)
            if fits:
                return _plan(wanted, flow)
            seated = flow.seated.total()
        if short:
            reasons = [_shortage(need, count, self.room(need), cluster.total(need)) for need, count in short.items()]
            gist = "; ".join(f"waiting for {_slots(need, count)}" for need, count in short.items())
        else:
            reasons = [_shared_shortage(wanted, cluster.offers, seated, feasible)]
            gist = f"waiting for {_listed_slots(wanted)}"
        obstacles = _obstacles({need.role for need in wanted}, cluster.live_nodes)
        return Waiting("; ".join([*reasons, *obstacles]), feasible, gist)


def _reachable_groups(offers: Offers) -> list[Offers]:
    """The groups of nodes whose workers can all reach each other."""
    groups: defaultdict[str | None, list[NodeSpec]] = defaultdict(list)
    for spec in offers.specs.values():
        groups[spec.loopback_of].append(spec)
    ordered = [group for _, group in sorted(groups.items(), key=lambda item: item[0] or "")]
    return [Offers(group) for group in ordered] if len(ordered) > 1 else [offers]


def _plan(wanted: Counts, flow: Flow) -> GangPlan:
    specs = flow.offers.specs
    # Sorted, so that neighboring ranks, which communicate most, share a node.
    seats = {need: [s for s in sorted(flow.seated.elements()) if specs[s.node].role is need.role] for need in wanted}
    places = [(need, number, seats[need][number]) for need, count in wanted.items() for number in range(count)]
    return GangPlan(
        workers=tuple(
            WorkerPlan(
                rank=rank,
                role=need.role,
                role_rank=number,
                node=seat.node,
                threads=need.threads_on(specs[seat.node].machine),
                gpu=seat.gpu,
            )
            for rank, (need, number, seat) in enumerate(places)
        )
    )


def _obstacles(roles: Collection[Role], live_nodes: Sequence[NodeState]) -> list[str]:
    """The reasons why live nodes accept no workers, with the nodes of each reason."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for node in sorted(live_nodes, key=lambda node: node.spec.name):
        if node.obstacle is not None and node.spec.role in roles:
            names[node.obstacle].append(node.spec.name)
    return [f"{_listed(some)} {'takes none' if len(some) == 1 else 'take none'}: {why}" for why, some in names.items()]


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _shortage(need: Need, wanted: int, free: int, total: int) -> str:
    slots = _slots(need, wanted)
    if wanted > total:
        return f"waiting for {slots}: the cluster has {total} in total; add nodes or ask for fewer"
    return f"waiting for {slots}: {free} of {total} {'is' if free == 1 else 'are'} free"


def _shared_shortage(wanted: Counts, offers: Offers, seated: int, feasible: bool) -> str:
    """The reason if each role alone would fit, but not together: the nodes share machines, or don't reach each other.

    `seated` is the number of workers that get a seat, wherever it is.
    """
    listed = _listed_slots(wanted)
    if seated == sum(wanted.values()):
        return _unreachable(wanted, offers)
    if not feasible:
        return f"waiting for {listed}: they share machines that hold {seated} in total; add nodes or ask for fewer"
    return f"waiting for {listed}: they share machines with room for {seated} now"


def _unreachable(wanted: Counts, offers: Offers) -> str:
    """The reason if there are enough slots, but not on nodes that can reach each other."""
    roles = {need.role for need in wanted}
    names = sorted(spec.name for spec in offers.specs.values() if spec.loopback_of is not None and spec.role in roles)
    return (
        f"waiting for {_listed_slots(wanted)} that reach each other: {_listed(names)} can only be reached on "
        f"{'its' if len(names) == 1 else 'their'} own machine; set MASTER_ADDR there to an address of the master that "
        "other machines reach"
    )


def _slots(need: Need, count: int) -> str:
    return " ".join(filter(None, [f"{count} {need.role} slot{'s' * (count != 1)}", need.resources.described]))


def _listed_slots(wanted: Counts) -> str:
    """Such as `1 trainer and 2 stage slots`."""
    if any(need.resources.described for need in wanted):
        return " and ".join(_slots(need, count) for need, count in wanted.items())
    return " and ".join(f"{count} {need.role}" for need, count in wanted.items()) + " slots"
