"""The assignment of a gang's workers to nodes, CPU shares and GPUs. Pure.

A machine has two ledgers, each as large as its CPU slots: one for roles that compute, one for roles that serve. A node
with exclusive cores has two of its own. A worker takes as many shares of its ledger as its threads are of the cores; a
serving worker with one thread takes an eighth of a share. A worker with a GPU takes no share, but one of the GPU's
places for workers on its machine, regardless of the container. Together they form a small flow network,
`role -> node -> ledger or GPU`. Augmenting paths (Ford and Fulkerson 1956) find seats for the whole gang if they exist.
If workers of one ledger take unequal shares, this is bin packing: those with the most threads are seated first, and an
assignment may be missed in rare cases.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from rolecall.master.bounded_cache import BoundedCache
from rolecall.spec.node import Machine, NodeSpec
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import RANK_ORDER, Role

_PARTS = 8
"""The parts of a CPU share: the least that a worker takes is one of them."""
_LEDGERS = frozenset({"compute", "serve"})


class Need(NamedTuple):
    """The needs of one worker of a gang."""

    role: Role
    gpus: int | None = None
    threads: int | None = None
    busy: bool = False

    @classmethod
    def of(cls, role: Role, resources: Resources | None) -> "Need":
        if resources is None:
            return cls(role)
        return cls(role, resources.gpus, resources.threads, resources.busy)

    @property
    def resources(self) -> Resources:
        return Resources(gpus=self.gpus, threads=self.threads, busy=self.busy)

    def threads_on(self, machine: Machine) -> int:
        """The number of CPU threads of such a worker."""
        if self.threads is not None:
            return self.threads
        return machine.threads_per_slot if self.role.computes or self.busy else 1

    def takes_gpu(self, spec: NodeSpec) -> bool:
        """Return whether such a worker gets a GPU on this node."""
        return bool(self.gpus) or (self.gpus is None and self.role.computes and bool(spec.machine.gpus))


Counts = Mapping[Need, int]
"""The number of workers of a gang by what they need; all workers of a role need the same."""


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
    size: int
    """The amount that it takes from the pool: eighths of a CPU share, or one place on a GPU."""

    @property
    def gpu(self) -> str | None:
        """The GPU's UUID, if the pool is one."""
        return None if self.pool.kind in _LEDGERS else self.pool.kind


class _Choice(NamedTuple):
    """The seats of a node that are alternatives for a worker, all of one size."""

    node: str
    size: int
    seats: tuple[Seat, ...]


_Load = tuple[bool, int, int, int, Seat]


def occupied_seat(spec: NodeSpec, worker: WorkerPlan) -> Seat:
    """The seat of a worker that is placed on this node."""
    if worker.gpu is not None:
        return Seat(spec.name, _gpu(spec, worker.gpu), 1)
    return Seat(spec.name, _ledger(spec), _parts(spec, worker.threads))


def slots_taken(spec: NodeSpec, worker: WorkerPlan) -> int:
    """The slots of a worker on this node in its token's limit: the CPU shares of its threads, at least 1."""
    return max(1, occupied_seat(spec, worker).size // _PARTS)


def least_slots(need: Need, offers: Iterable[NodeSpec]) -> int:
    """The least slots of such a worker on any of these nodes; 1 if none of them can have it."""
    choices = [_choice(spec, need) for spec in offers if spec.role is need.role]
    return min((max(1, choice.size // _PARTS) for choice in choices if choice is not None), default=1)


@dataclass(slots=True)
class _Search:
    """The seats that one search has tried."""

    pools: set[Pool] = field(default_factory=set[Pool])
    """Full pools: to make room in one of them again can't help."""
    needs: set[Need] = field(default_factory=set[Need])
    """Needs whose pools are all tried, or being tried. To move a worker like one that needs a seat can't help: the
    other could take the seat itself. So a search is no deeper than a gang has roles, however large the cluster."""


class Offers:
    """The seats of a set of nodes while nothing runs. Searches share it, and what it caches."""

    def __init__(self, specs: Iterable[NodeSpec]) -> None:
        self.specs = {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}
        self.slots = {name: spec.slots for name, spec in self.specs.items()}
        self.pool_sizes = _pool_sizes(self.specs.values())
        self.gpu_places = {pool: size for pool, size in self.pool_sizes.items() if pool.kind not in _LEDGERS}
        self._choices = BoundedCache[Need, list[_Choice]](256)  # A list is as long as the cluster has nodes.

    def choices(self, need: Need) -> list[_Choice]:
        """The alternatives of such a worker on each node that can ever have one."""
        if need not in self._choices:
            found = (_choice(spec, need) for spec in self.specs.values() if spec.role is need.role)
            self._choices[need] = [choice for choice in found if choice is not None]
        return self._choices[need]


class Flow:
    """An assignment of workers to seats, within the nodes' offers."""

    def __init__(self, offers: Offers, occupied: Sequence[Seat]) -> None:
        self.offers = offers
        self._needs: dict[Role, Need] = {}
        self._seats_left = defaultdict(int, offers.slots)
        self._pool_left = defaultdict(int, offers.pool_sizes)
        self.seated: Counter[Seat] = Counter()
        self._users: defaultdict[Pool, set[Seat]] = defaultdict(set)
        self._heaps: dict[Need, list[tuple[_Load, _Choice]]] = {}
        for seat in occupied:
            self._seats_left[seat.node] -= 1
            self._pool_left[seat.pool] -= seat.size

    def fill(self, wanted: Counts) -> Counter[Need]:
        """Seat as many workers as fit. Returns the number of the others for each need."""
        self._needs |= {need.role: need for need in wanted}
        short: Counter[Need] = Counter()
        ordered = sorted(wanted, key=lambda need: (-(need.threads or 0), RANK_ORDER.index(need.role)))
        for need in ordered:
            for number in range(wanted[need]):
                if not self._seat(need, _Search()):
                    short[need] = wanted[need] - number
                    break
        return short

    def room(self, need: Need) -> int:
        """The number of additional workers that fit, if all need the same. Can seat them to count them."""
        seats: Counter[tuple[frozenset[Pool], int]] = Counter()
        for node, size, alternatives in self._open_choices(need):
            seats[frozenset(seat.pool for seat in alternatives), size] += self._seats_left[node]
        if sum(len(pools) for pools, _ in seats) > len(frozenset[Pool]().union(*(pools for pools, _ in seats))):
            # Some nodes share only a part of their pools, or take unequal parts of them.
            return seats.total() - self.fill({need: seats.total()})[need]
        return sum(
            min(count, sum(max(0, self._pool_left[pool]) // size for pool in pools))
            for (pools, size), count in seats.items()
        )

    def _seat(self, need: Need, search: _Search) -> bool:
        """Seat one more such worker, and move other workers of the gang if necessary."""
        best = self._best(need)
        if best is None:
            return False
        if self._has_room(best) and best.pool not in search.pools:  # The usual case, which needs no sorting.
            self._occupy(best, 1)
            return True
        search.needs.add(need)
        for *_, seat in sorted(load for choice in self._open_choices(need) for load in self._loads(choice)):
            if seat.pool not in search.pools and self._make_room(seat, search):
                search.needs.discard(need)
                self._occupy(seat, 1)
                return True
        return False

    def _best(self, need: Need) -> Seat | None:
        """The seat with the lowest load; None if all nodes are full.

        Loads only grow while seats are taken, so an entry of the heap that is out of date is too low, never too high.
        """
        if need not in self._heaps:
            self._heaps[need] = [(min(self._loads(choice)), choice) for choice in self._open_choices(need)]
            heapify(self._heaps[need])
        heap = self._heaps[need]
        while heap:
            load, choice = heap[0]
            if self._seats_left[choice.node] <= 0:
                heappop(heap)
            elif (now := min(self._loads(choice))) != load:
                heapreplace(heap, (now, choice))
            else:
                return load[-1]
        return None

    def _make_room(self, wanted: Seat, search: _Search) -> bool:
        if self._has_room(wanted):
            return True
        search.pools.add(wanted.pool)
        for seat in sorted(self._users[wanted.pool]):
            while self.seated[seat] and self._need_at(seat) not in search.needs:
                self._occupy(seat, -1)
                if not self._seat(self._need_at(seat), search):
                    self._occupy(seat, 1)
                    break
                if self._has_room(wanted):
                    return True
        return False

    def _need_at(self, seat: Seat) -> Need:
        return self._needs[self.offers.specs[seat.node].role]

    def _open_choices(self, need: Need) -> Iterator[_Choice]:
        return (choice for choice in self.offers.choices(need) if self._seats_left[choice.node] > 0)

    def _has_room(self, seat: Seat) -> bool:
        return self._pool_left[seat.pool] >= seat.size

    def _loads(self, choice: _Choice) -> list[_Load]:
        """The sort keys of a node's seats: free pools first, then GPUs with the fewest users, then the emptiest node,
        so that gangs spread."""
        node, size, seats = choice
        left = [self._pool_left[seat.pool] for seat in seats]
        room, seats_left = sum([one // size for one in left if one > 0]), self._seats_left[node]
        places = self.offers.gpu_places
        return [
            (one < size, places.get(seat.pool, one) - one, -room, -seats_left, seat)
            for seat, one in zip(seats, left, strict=True)
        ]

    def _occupy(self, seat: Seat, count: int) -> None:
        if count < 0:
            self._heaps.clear()
        self.seated[seat] += count
        self._users[seat.pool].add(seat)
        self._seats_left[seat.node] -= count
        self._pool_left[seat.pool] -= count * seat.size


def pools_of(spec: NodeSpec, *, on_gpu: bool) -> tuple[Pool, ...]:
    """The alternatives of a worker on this node, on a GPU or on the CPU; empty if it has no GPU."""
    return tuple(_gpu(spec, gpu.uuid) for gpu in spec.machine.gpus) if on_gpu else (_ledger(spec),)


def _choice(spec: NodeSpec, need: Need) -> _Choice | None:
    """The alternatives of such a worker on this node; None if the node can never have one."""
    threads, on_gpu = need.threads_on(spec.machine), need.takes_gpu(spec)
    pools = pools_of(spec, on_gpu=on_gpu)
    if not pools or (need.threads is not None and threads > spec.machine.cores):
        return None
    size = 1 if on_gpu else _parts(spec, threads)
    return _Choice(spec.name, size, tuple(Seat(spec.name, pool, size) for pool in pools))


def _gpu(spec: NodeSpec, uuid: str) -> Pool:
    return Pool(spec.machine.boot_id, uuid)


def _ledger(spec: NodeSpec) -> Pool:
    machine = spec.machine
    owner = f"{machine.boot_id}/{spec.name}" if machine.exclusive else machine.boot_id
    return Pool(owner, "compute" if spec.role.computes else "serve")


def _parts(spec: NodeSpec, threads: int) -> int:
    """The parts of a CPU share that a worker with this number of threads takes."""
    if threads == 1 and not spec.role.computes:
        return int(spec.role.weight * _PARTS)
    return spec.machine.slots_of(threads) * _PARTS


def _pool_sizes(offers: Iterable[NodeSpec]) -> Mapping[Pool, int]:
    """The sizes of all pools. Nodes of one machine can have different settings: then the largest number of CPU slots
    applies, and the smallest number of workers on a GPU, which is 1 on nodes that can't share."""
    sizes: defaultdict[Pool, int] = defaultdict(int)
    for spec in offers:
        ledger = _ledger(spec)
        sizes[ledger] = max(sizes[ledger], spec.machine.cpu_slots * _PARTS)
        for gpu in (_gpu(spec, one.uuid) for one in spec.machine.gpus):
            workers = spec.machine.workers_per_gpu
            sizes[gpu] = min(sizes[gpu], workers) if gpu in sizes else workers
    return sizes
