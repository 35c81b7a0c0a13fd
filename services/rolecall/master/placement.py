"""Placement of gangs on nodes. Pure.

A machine has two ledgers, each as large as its CPU slots: one for roles that compute, one for roles that serve. A node
with exclusive cores has two of its own. A GPU has one user per machine, regardless of the container. Together they form
a small flow network, `role -> node -> ledger or GPU`. Augmenting paths (Ford and Fulkerson 1956) find seats for the
whole gang if they exist.

A node with a loopback address shares a gang only with nodes in its own network namespace, because no other node can
reach its workers.

Equal shapes have equal outcomes. A `Cluster` computes once per shape what depends only on the nodes, and a `Seating`
what depends on the occupied seats as well. A thousand waiting jobs of five shapes need five searches, and none while
nothing changes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rolecall.spec.node import NodeSpec, NodeState
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import RANK_ORDER, Role

Counts = Mapping[Role, int]
Shape = frozenset[tuple[Role, int]]
_MAX_NAMES = 4


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a gang can't be placed now."""

    reason: str
    feasible: bool
    """True if the gang would fit if nothing else ran."""
    gist: str = ""
    """The reason without figures that change all the time, if it has any."""

    @property
    def lasting(self) -> str:
        """The reason to store, which changes only if the job waits for something else."""
        return self.gist or self.reason


class Pool(NamedTuple):
    """A resource that the nodes of one machine share: one of its ledgers, or one GPU."""

    owner: str
    """The machine, or a node with exclusive cores."""
    kind: str
    """`compute`, `serve` or a GPU's UUID."""


class Seat(NamedTuple):
    """The seat of one worker: a node, and the pool that it uses."""

    node: str
    pool: Pool

    @property
    def gpu(self) -> str | None:
        """The GPU's UUID, if the pool is one."""
        return None if self.pool.kind in {"compute", "serve"} else self.pool.kind


Outcome = GangPlan | Waiting


class Cluster:
    """The nodes at one point in time. Caches what it computes."""

    def __init__(self, nodes: Iterable[NodeState], avoid: Collection[str] = ()) -> None:
        self.nodes = tuple(nodes)
        self.live_nodes = [node for node in self.nodes if node.alive]
        self.offers = [node.spec for node in self.live_nodes if node.obstacle is None and node.spec.name not in avoid]
        self.reachable_groups = _reachable_groups(self.offers)
        self.addresses = {node.spec.name: node.spec.address for node in self.nodes}
        self._totals: dict[Role, int] = {}
        self._rooms: dict[Role, int] = {}
        self._feasible: dict[Shape, bool] = {}
        self._seating: tuple[tuple[WorkerPlan, ...], Seating] | None = None
        self._without: dict[frozenset[str], Cluster] = {}

    def without(self, avoid: frozenset[str]) -> "Cluster":
        """The same cluster without offers of the nodes in `avoid`, whose workers still use their machines."""
        if avoid not in self._without:
            self._without[avoid] = Cluster(self.nodes, avoid)
        return self._without[avoid]

    def seating(self, taken: Sequence[WorkerPlan]) -> "Seating":
        """The seating with `taken` occupied. Caches the last one."""
        taken = tuple(taken)
        if self._seating is None or self._seating[0] != taken:
            self._seating = taken, Seating(self, taken)
        return self._seating[1]

    def total(self, role: Role) -> int:
        """The capacity of all live nodes for `role`, including nodes that accept no workers now."""
        if role not in self._totals:
            self._totals[role] = Flow([node.spec for node in self.live_nodes], ()).room(role)
        return self._totals[role]

    def is_feasible(self, roles: Counts) -> bool:
        """Return whether the gang would fit if nothing else ran."""
        shape = shape_of(roles)
        if shape not in self._feasible:
            fits = all(count <= self._room_alone(role) for role, count in shape)
            self._feasible[shape] = fits and any(not Flow(group, ()).fill(roles) for group in self.reachable_groups)
        return self._feasible[shape]

    def _room_alone(self, role: Role) -> int:
        if role not in self._rooms:
            self._rooms[role] = Flow(self.offers, ()).room(role)
        return self._rooms[role]


class Seating:
    """A cluster with occupied seats. Caches what it computes."""

    def __init__(self, cluster: Cluster, taken: Sequence[WorkerPlan]) -> None:
        self._cluster = cluster
        self._taken = taken
        self._occupied = _occupied(cluster.nodes, taken)
        self._rooms: dict[Role, int] = {}
        self._outcomes: dict[Shape, Outcome] = {}
        self._elsewhere: dict[frozenset[str], Seating] = {}

    def place(self, roles: Counts, avoid: Collection[str] = ()) -> Outcome:
        """The plan of a gang with these role counts, or the reason why it can't be placed.

        The plan avoids the nodes in `avoid` if possible.
        """
        if avoid and isinstance(elsewhere := self._without(frozenset(avoid)).place(roles), GangPlan):
            return elsewhere
        shape = shape_of(roles)
        if shape not in self._outcomes:
            self._outcomes[shape] = self._search(roles)
        return self._outcomes[shape]

    def room(self, role: Role) -> int:
        """The number of additional workers that fit, if all have this role."""
        if role not in self._rooms:
            self._rooms[role] = Flow(self._cluster.offers, self._occupied).room(role)
        return self._rooms[role]

    def _without(self, avoid: frozenset[str]) -> "Seating":
        if avoid not in self._elsewhere:
            self._elsewhere[avoid] = Seating(self._cluster.without(avoid), self._taken)
        return self._elsewhere[avoid]

    def _search(self, roles: Counts) -> Outcome:
        # If the workers of one role alone don't fit, a search is unnecessary.
        if all(count <= self.room(role) for role, count in shape_of(roles)):
            for reachable in self._cluster.reachable_groups:
                free = Flow(reachable, self._occupied)
                if not free.fill(roles):
                    return _plan(roles, reachable, free)
        return self._waiting(roles)

    def _waiting(self, roles: Counts) -> Waiting:
        cluster, feasible = self._cluster, self._cluster.is_feasible(roles)
        wanted = {role: roles[role] for role in RANK_ORDER if roles.get(role, 0)}
        short = {role: count for role, count in wanted.items() if count > self.room(role)}
        reasons = [_shortage(role, count, self.room(role), cluster.total(role)) for role, count in short.items()]
        gist = "; ".join(f"waiting for {_slots(role, count)}" for role, count in short.items())
        if not reasons:
            separated = not Flow(cluster.offers, self._occupied if feasible else ()).fill(roles)
            gist = f"waiting for {_listed_counts(wanted)} slots"
            reasons = [
                _unreachable(roles, cluster.offers)
                if separated
                else _shared_shortage(wanted, cluster.offers, self._occupied, feasible)
            ]
        return Waiting("; ".join([*reasons, *_obstacles(roles, cluster.live_nodes)]), feasible, gist)


def shape_of(roles: Counts) -> Shape:
    """The property of a gang that determines its placement, given the nodes and the occupied seats."""
    return frozenset((role, count) for role, count in roles.items() if count)


def _occupied(nodes: Iterable[NodeState], taken: Iterable[WorkerPlan]) -> list[Seat]:
    """The seats of `taken`, including those on nodes without offers, because machines share pools."""
    specs = {node.spec.name: node.spec for node in nodes}
    known = [(specs[worker.node], worker.gpu) for worker in taken if worker.node in specs]
    return [Seat(spec.name, _gpu(spec, gpu) if gpu else _ledger(spec)) for spec, gpu in known]


def _reachable_groups(offers: Sequence[NodeSpec]) -> list[list[NodeSpec]]:
    """The groups of nodes whose workers can all reach each other."""
    namespaces = sorted({spec.loopback_of for spec in offers if spec.loopback_of is not None})
    routable = [spec for spec in offers if spec.loopback_of is None]
    return [routable, *([spec for spec in offers if spec.loopback_of == one] for one in namespaces)]


class Flow:
    """An assignment of workers to seats, within the nodes' offers."""

    def __init__(self, offers: Sequence[NodeSpec], occupied: Sequence[Seat]) -> None:
        self._specs = {spec.name: spec for spec in sorted(offers, key=lambda spec: spec.name)}
        self._pools = {spec.name: _pools(spec) for spec in offers}
        self._seats_left = Counter({spec.name: spec.slots for spec in offers})
        self._pool_left = _pool_sizes(offers)
        self.seated: Counter[Seat] = Counter()
        for seat in occupied:
            self._seats_left[seat.node] -= 1
            self._pool_left[seat.pool] -= 1

    def fill(self, roles: Counts) -> Counter[Role]:
        """Seat as many workers as fit. Returns the number of the others for each role."""
        short: Counter[Role] = Counter()
        for role in RANK_ORDER:
            for _ in range(roles.get(role, 0)):
                if not self._seat(role, set()):
                    short[role] += 1
        return short

    def room(self, role: Role) -> int:
        """The number of additional workers that fit, if all have this role. Can seat them to count them."""
        seats: Counter[frozenset[Pool]] = Counter()
        for node in self._open_nodes(role):
            seats[frozenset(self._pools[node])] += self._seats_left[node]
        if sum(map(len, seats)) > len(frozenset[Pool]().union(*seats)):  # Some nodes share only a part of their pools.
            return seats.total() - self.fill({role: seats.total()})[role]
        free = {pools: sum(max(0, self._pool_left[pool]) for pool in pools) for pools in seats}
        return sum(min(count, free[pools]) for pools, count in seats.items())

    def _seat(self, role: Role, seen: set[Pool]) -> bool:
        """Seat one more worker of `role`, and move other workers of the gang if necessary."""
        choices = [Seat(node, pool) for node in self._open_nodes(role) for pool in self._pools[node]]
        if not choices:
            return False
        best = min(choices, key=self._load)
        if self._pool_left[best.pool] > 0 and best.pool not in seen:  # The usual case, which needs no sorting.
            self._occupy(best, 1)
            return True
        for seat in sorted(choices, key=self._load):
            if seat.pool not in seen and self._make_room(seat.pool, seen):
                self._occupy(seat, 1)
                return True
        return False

    def _make_room(self, pool: Pool, seen: set[Pool]) -> bool:
        if self._pool_left[pool] > 0:
            return True
        seen.add(pool)
        for seat in sorted(seat for seat, count in self.seated.items() if count and seat.pool == pool):
            self._occupy(seat, -1)
            if self._seat(self._specs[seat.node].role, seen):
                return True
            self._occupy(seat, 1)
        return False

    def _open_nodes(self, role: Role) -> list[str]:
        return [name for name, spec in self._specs.items() if spec.role is role and self._seats_left[name] > 0]

    def _load(self, seat: Seat) -> tuple[bool, int, int, Seat]:
        """The sort key of seats: free pools first, then the emptiest node, so that gangs spread."""
        left = self._pool_left[seat.pool]
        room = sum(max(0, self._pool_left[pool]) for pool in self._pools[seat.node])
        return left <= 0, -room, -self._seats_left[seat.node], seat

    def _occupy(self, seat: Seat, count: int) -> None:
        self.seated[seat] += count
        self._seats_left[seat.node] -= count
        self._pool_left[seat.pool] -= count


def _pools(spec: NodeSpec) -> list[Pool]:
    gpus = [_gpu(spec, gpu.uuid) for gpu in spec.machine.gpus] if spec.role.computes else []
    return gpus or [_ledger(spec)]


def _gpu(spec: NodeSpec, uuid: str) -> Pool:
    return Pool(spec.machine.boot_id, uuid)


def _ledger(spec: NodeSpec) -> Pool:
    machine = spec.machine
    owner = f"{machine.boot_id}/{spec.name}" if machine.exclusive else machine.boot_id
    return Pool(owner, "compute" if spec.role.computes else "serve")


def _pool_sizes(offers: Sequence[NodeSpec]) -> defaultdict[Pool, int]:
    sizes: defaultdict[Pool, int] = defaultdict(int)
    for spec in offers:
        for pool in _pools(spec):
            shares = int(spec.machine.cpu_slots / spec.role.weight)
            sizes[pool] = max(sizes[pool], shares if pool.kind in {"compute", "serve"} else 1)
    return sizes


def _plan(roles: Counts, offers: Sequence[NodeSpec], flow: Flow) -> GangPlan:
    specs = {spec.name: spec for spec in offers}
    # Sorted, so that neighboring ranks, which communicate most, share a node.
    seats = {role: [s for s in sorted(flow.seated.elements()) if specs[s.node].role is role] for role in RANK_ORDER}
    places = [(role, number, seats[role][number]) for role in RANK_ORDER for number in range(roles.get(role, 0))]
    return GangPlan(
        workers=tuple(
            WorkerPlan(
                rank=rank, role=role, role_rank=number, node=seat.node, threads=_threads(specs[seat.node]), gpu=seat.gpu
            )
            for rank, (role, number, seat) in enumerate(places)
        )
    )


def _threads(spec: NodeSpec) -> int:
    return max(1, spec.machine.cores // spec.machine.cpu_slots) if spec.role.computes else 1


def _obstacles(roles: Counts, live_nodes: Sequence[NodeState]) -> list[str]:
    """The reasons why live nodes accept no workers, with the nodes of each reason."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for node in sorted(live_nodes, key=lambda node: node.spec.name):
        if node.obstacle is not None and roles.get(node.spec.role, 0):
            names[node.obstacle].append(node.spec.name)
    return [f"{_listed(some)} take{'s' * (len(some) == 1)} none: {why}" for why, some in names.items()]


def _unreachable(roles: Counts, offers: Sequence[NodeSpec]) -> str:
    """The reason if there are enough slots, but not on nodes that can reach each other."""
    listed = _listed_counts({role: roles[role] for role in RANK_ORDER if roles.get(role, 0)})
    names = sorted(spec.name for spec in offers if spec.loopback_of is not None and roles.get(spec.role, 0))
    return (
        f"waiting for {listed} slots that reach each other: {_listed(names)} can only be reached on "
        f"{'its' if len(names) == 1 else 'their'} own machine; set MASTER_ADDR there to an address of the master that "
        "other machines reach"
    )


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} others"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _shortage(role: Role, wanted: int, free: int, total: int) -> str:
    slots = _slots(role, wanted)
    if wanted > total:
        return f"waiting for {slots}: the cluster has {total} in total; add nodes or ask for fewer"
    return f"waiting for {slots}: {free} of {total} {'is' if free == 1 else 'are'} free"


def _shared_shortage(wanted: Counts, offers: Sequence[NodeSpec], occupied: Sequence[Seat], feasible: bool) -> str:
    """The reason if each role alone would fit, but the roles share machines."""
    listed = _listed_counts(wanted)
    busy = () if not feasible else occupied
    fit = sum(wanted.values()) - Flow(offers, busy).fill(wanted).total()
    if not feasible:
        return f"waiting for {listed} slots: they share machines that hold {fit} in total; add nodes or ask for fewer"
    return f"waiting for {listed} slots: they share machines with room for {fit} now"


def _slots(role: Role, count: int) -> str:
    return f"{count} {role} slot{'s' * (count != 1)}"


def _listed_counts(wanted: Counts) -> str:
    return " and ".join(f"{count} {role}" for role, count in wanted.items())
