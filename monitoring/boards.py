"""Generates the dashboards in `monitoring/dashboards`: `python -m monitoring.boards`."""

from collections.abc import Iterator
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from monitoring.panels import Marks, Panel, board, graph, job_variable, label, labels, number, role_variable
from rolecall.spec.metric import Metric
from rolecall.spec.timeline import STEP_CATEGORIES
from rolecall.workloads import catalogue

FOLDER = Path(__file__).parent / "dashboards"
BUILT_IN = ("embedding-ddp", "reinforce", "resnet-pipeline", "rnn-lm", "transformer-pipeline")
_THIRD = 8
_TO_JOB = {"job": "/d/rolecall-job?var-job=${__value.text}"}
_UNITS = {"ratio": "percentunit", "seconds": "s", "bytes": "bytes", "": "short"}
"""Grafana's names of the units that workloads declare."""
_ATTEMPT_STARTED = "rolecall_job_attempt_started_timestamp_seconds"


def files() -> dict[str, str]:
    """The content of each file in `monitoring/dashboards`."""
    boards = {"cluster": _cluster(), "job": _job()} | {name: _workload(name) for name in BUILT_IN}
    return {
        f"{name}.json": JSONEncoder(sort_keys=True, indent=2).encode(one.build()) + "\n" for name, one in boards.items()
    }


def _mean(metric: str, by: str = "") -> str:
    """The mean of a histogram's or summary's observations."""
    rates = [f"sum by ({by}) (rate({metric}_{part}[$__rate_interval]))" for part in ("sum", "count")]
    return " / ".join(rates)


def _mean_and_tail(metric: str, by: str = "") -> tuple[tuple[str, str], tuple[str, str]]:
    """The mean and the 95th percentile of a histogram's observations, for each value of the label `by`."""
    percentile = (
        f"histogram_quantile(0.95, sum by ({by}{', ' if by else ''}le) (rate({metric}_bucket[$__rate_interval])))"
    )
    name = f"{{{{{by}}}}} " if by else ""
    return (_mean(metric, by), f"{name}mean"), (percentile, f"{name}95 %")


def _cluster() -> Dashboard:
    panels = [
        number("Queued jobs", "Jobs that wait for slots.", "short", "rolecall_queue_depth"),
        number("Longest wait", "Waiting time of the oldest queued job.", "s", "rolecall_queue_oldest_age_seconds"),
        number("Nodes alive", "Nodes with a recent heartbeat.", "short", "sum(rolecall_nodes)"),
        number("Slots in use", "Share of all slots that workers use.", "percentunit",
            "1 - sum(rolecall_slots_free) / sum(rolecall_slots)", most=1),
        number("Silent nodes", "Nodes without a heartbeat for more than 10 seconds.", "short",
            "count(rolecall_node_heartbeat_age_seconds > 10) or vector(0)", alarm=True),
        number("Targets down", "Programs that Prometheus can't scrape.", "short",
            'count(up{job=~"rolecall.*"} == 0) or vector(0)', alarm=True),
        graph("Jobs by state", "All jobs in the database.", "short", ("rolecall_jobs", "{{state}}"), stacked=True),
        labels("Running jobs", "Jobs that use slots; click a job to open its dashboard.", "rolecall_job_state",
            ["job", "workload", "state"], _TO_JOB),
        labels("Failed jobs", "Jobs that failed in the last hour, with the class of their error; click a job to "
            "open its dashboard.", "rolecall_job_failed", ["job", "workload", "cause"], _TO_JOB),
        graph("Failed jobs by cause", "Jobs that failed in the last hour, by the class of their error.", "short",
            ("sum by (cause) (rolecall_job_failed)", "{{cause}}"), stacked=True),
        graph("Queued jobs by reason", "What queued jobs wait for.", "short",
            ("rolecall_queue_waiting_jobs", "{{reason}}"), width=_THIRD, stacked=True),
        graph("Age of the oldest queued job", "0 if the queue is empty.", "s",
            ("rolecall_queue_oldest_age_seconds", "age"), width=_THIRD),
        graph("Time to placement", "Time from the queue to the plan of a gang: the mean, and the time within "
            "which 95 % get one.", "s", *_mean_and_tail("rolecall_placement_seconds"), width=_THIRD),
        graph("Samples per second", "Throughput of each running job.", "short",
            ("rolecall_job_samples_per_second", "{{job}} ({{workload}})"), width=_THIRD),
        graph("Nodes by role", "Nodes that are alive.", "short",
            (_by_role("rolecall_nodes"), "{{role}}"), width=_THIRD, stacked=True),
        graph("Slots by role", "Slots of live nodes, in total and free.", "short",
            (_by_role("rolecall_slots"), "{{role}}: all"),
            (_by_role("rolecall_slots_free"), "{{role}}: free"), width=_THIRD),
        graph("Heartbeat age", "Time since the last heartbeat of each node.", "s",
            (_by_role("rolecall_node_heartbeat_age_seconds"), "{{node}}"), width=_THIRD),
        graph("Workers by state", "Processes on all nodes.", "short",
            ("sum by (state) (rolecall_node_workers)", "{{state}}"), width=_THIRD, stacked=True),
        graph("Ended workers", "By outcome, since each node started.", "short",
            ("sum by (reason) (rolecall_node_worker_exits_total)", "{{reason}}"), width=_THIRD),
        graph("Started processes", "Workers, those of a later attempt, and fork servers after one died, since each "
            "node started.", "short", ("sum(rolecall_node_worker_starts_total)", "workers"),
            ("sum(rolecall_node_worker_restarts_total)", "workers of a later attempt"),
            ("sum(rolecall_node_fork_server_restarts_total)", "fork servers after one died"), width=_THIRD),
        graph("CPU by role", "Cores that workers keep busy.", "short",
            (f"sum by (role) (rate({_by_role('rolecall_worker_cpu_seconds_total')}[$__rate_interval]))", "{{role}}"),
            width=_THIRD, stacked=True),
        graph("Memory by role", "Memory that workers use.", "bytes",
            (f"sum by (role) ({_by_role('rolecall_worker_resident_memory_bytes')})", "{{role}}"), width=_THIRD,
            stacked=True),
        graph("Failed calls to the master", "Heartbeats that nodes had to retry.", "cps",
            ("sum by (instance) (rate(rolecall_node_heartbeat_failures_total[$__rate_interval]))", "{{instance}}"),
            width=_THIRD),
        graph("GPU use", "Share of time in which GPUs computed: the mean of each node.", "percentunit",
            ("avg by (instance) (rolecall_gpu_use_ratio)", "{{instance}}"), width=_THIRD),
        graph("GPU memory in use", "Share of the memory of each node's GPUs.", "percentunit",
            ("sum by (instance) (rolecall_gpu_memory_used_bytes) / sum by (instance) (rolecall_gpu_memory_total_bytes)",
            "{{instance}}"), width=_THIRD),
        graph("Goodput", "Share of the time since submission that went into retained steps.", "percentunit",
            ("rolecall_job_goodput_ratio", "{{job}}")),
        graph("Free space", "The master's volume, and the free space below which it stores no logs and uploads.",
            "bytes", ("rolecall_volume_free_bytes", "free"), ("rolecall_volume_total_bytes", "size"),
            ("rolecall_volume_reserve_bytes", "reserve")),
        graph("API latency", "Time from a call to its response, by path: the mean, and the time within which 95 % "
            "have one.", "s", *_mean_and_tail("rolecall_api_request_seconds", "route"), width=_THIRD),
        graph("Database", "Time of a transaction: the mean, and the time within which 95 % end.", "s",
            *_mean_and_tail("rolecall_database_seconds", "access"), width=_THIRD),
        graph("Passes of the loops", "Mean time of a pass, for each loop of the master.", "s",
            (_mean("rolecall_loop_pass_seconds", "loop"), "{{loop}}"), width=_THIRD),
        graph("Idle loops", "Time since the last successful pass of each loop of the master.", "s",
            ("rolecall_loop_idle_seconds", "{{loop}}"), width=_THIRD),
        graph("Blob store", "Time of a call: the mean, and the time within which 95 % return.", "s",
            *_mean_and_tail("rolecall_blob_store_seconds"), width=_THIRD),
        graph("Overdue calls of the blob store", "Calls that have exceeded their time limit and not returned.", "short",
            ("rolecall_blob_store_hung_calls", "calls"), width=_THIRD),
        graph("Exports", "Tries to export a job to another program, by target and outcome, since the master started.",
            "short", ("rolecall_exports_total", "{{target}}: {{outcome}}")),
    ]  # fmt: skip
    found = board("rolecall-cluster", "Rolecall: cluster", "Capacity, activity and queue of the cluster.", panels)
    found.with_variable(role_variable())
    restarts = f"{_ATTEMPT_STARTED} and on (job) rolecall_job_attempt > 1"
    found.annotation(Marks("Later attempts", "orange", restarts, "{{job}}: a later attempt was placed"))
    return found.annotation(Marks("Failures", "red", _failure_times(), "{{job}} failed: {{cause}}"))


def _job() -> Dashboard:
    worker = "{{role}}, rank {{rank}}"
    panels = [
        *_state(),
        graph("Loss", "The newest training loss.", "short", (_of("rolecall_job_loss"), "loss"), least=None),
        graph("Samples per second", "Samples trained per second by the whole gang.", "short",
            (_of("rolecall_job_samples_per_second"), "samples/s")),
        graph("Declared metrics", "The newest value of each metric that the workload declares.", "short",
            (_of("rolecall_job_metric"), "{{metric}} {{split}}"), least=None),
        graph("Step time", "Mean time of an optimizer step; empty while the job does not advance.", "s",
            ('1 / (deriv(rolecall_job_step{job="$job"}[$__rate_interval]) > 0)', "step time")),
        graph("Step", "Optimizer steps completed; falls when an attempt resumes from a checkpoint.", "short",
            (_of("rolecall_job_step"), "step")),
        graph("Attempts", "Increases when the gang restarts.", "short", (_of("rolecall_job_attempt"), "attempt")),
        graph("Goodput", "Share of the time since submission that went into retained steps.", "percentunit",
            (_of("rolecall_job_goodput_ratio"), "goodput")),
        graph("Lost time", "Time that did not go into retained steps, by cause.", "s",
            (_of("rolecall_job_lost_seconds"), "{{cause}}")),
        *_time(),
        *_checkpoints(worker),
        graph("CPU of the workers", "Cores that each worker keeps busy.", "short",
            (_rate("cpu_seconds_total", "role, rank"), worker)),
        graph("Memory of the workers", "Memory that each worker uses.", "bytes",
            (f"sum by (role, rank) ({_of('rolecall_worker_resident_memory_bytes')})", worker)),
        graph("Loss by worker", "Last value reported by each worker.", "short",
            (f"max by (role, rank) ({_of('rolecall_worker_loss')})", worker), least=None),
        graph("Step by worker", "Last value reported by each worker.", "short",
            (f"max by (role, rank) ({_of('rolecall_worker_step')})", worker)),
        graph("Samples per second by worker", "Last value reported by each worker.", "short",
            (f"max by (role, rank) ({_of('rolecall_worker_samples_per_second')})", worker)),
        *_gpus(worker),
    ]  # fmt: skip
    found = board("rolecall-job", "Rolecall: job", "One running job, and the workers of its gang.", panels)
    return _with_job(found)


def _checkpoints(worker: str) -> Iterator[Panel]:
    size = f"max by (role, rank) ({_of('rolecall_worker_checkpoint_bytes')})"
    yield graph("Checkpoints", "Size of the newest part that each worker wrote.", "bytes", (size, worker))
    seconds, parts = (_rate(f"checkpoint_{what}_total", "role, rank") for what in ("write_seconds", "parts"))
    yield graph(
        "Time of a checkpoint", "Mean time to write and store a part.", "s", (f"{seconds} / ({parts} > 0)", worker)
    )


def _gpus(worker: str) -> Iterator[Panel]:
    # The nodes of a machine can export the same GPU, and a GPU can have several workers.
    assigned = f"on (gpu) group_right () {_of('rolecall_worker_gpu_info')}"
    text = "Share of time in which the GPU of each worker computed; workers can share a GPU."
    use = f"max by (gpu) (rolecall_gpu_use_ratio) * {assigned}"
    yield graph("GPU use of the workers", text, "percentunit", (use, worker))
    memory = [
        (f"max by (role, rank) ({_of(f'rolecall_worker_{name}_bytes')})", f"{worker}: {when}")
        for name, when in (("gpu_memory", "now"), ("gpu_memory_peak", "maximum"))
    ]
    yield graph("GPU memory of the workers", "GPU memory of each worker's tensors.", "bytes", *memory)


def _workload(name: str) -> Dashboard:
    panels = [*_state(), *_time(), *_MEASUREMENTS[name](), *_declared(name)]
    found = board(
        f"rolecall-{name}", f"Rolecall: {name}", f"A job of {name}, with its measurements and declared metrics.", panels
    )
    return _with_job(found, f'{{workload="{name}"}}')


def _with_job(found: Dashboard, selector: str = "") -> Dashboard:
    """The dashboard of one job, with the job's events."""
    found.with_variable(job_variable(selector))
    for name, color, gauge, text in (
        ("Attempts", "orange", _of(_ATTEMPT_STARTED), "The attempt was placed"),
        ("Checkpoints", "blue", _of("rolecall_job_checkpoint_timestamp_seconds"), "Checkpoint"),
        ("End", "purple", 'rolecall_job_ended_timestamp_seconds{job="$job", state!="failed"}', "{{state}}"),
        ("Failure", "red", _failure_times('{job="$job"}'), "failed: {{cause}}"),
    ):
        found.annotation(Marks(name, color, gauge, text))
    return found


def _failure_times(selector: str = "") -> str:
    """The times at which jobs failed, with the class of their error."""
    times = f"rolecall_job_ended_timestamp_seconds{selector}"
    return f"{times} * on (job) group_left (cause) rolecall_job_failed{selector}"


def _state() -> Iterator[Panel]:
    state, cause = (_of("rolecall_job_state"), "{{state}}"), (_of("rolecall_job_failed"), "{{cause}}")
    yield label("State", "Current state of the job, and the class of its error if it has failed.", state, cause)
    attempt = "Starts at 1; each later attempt follows a failure, a drain or a pause."
    yield number("Attempt", attempt, "short", _of("rolecall_job_attempt"))
    yield number("Step", "Optimizer steps completed.", "short", _of("rolecall_job_step"))
    yield number("Loss", "The newest training loss.", "short", _of("rolecall_job_loss"), least=None)
    yield number("Samples per second", "The newest throughput.", "short", _of("rolecall_job_samples_per_second"))
    workers = f"count({_of('rolecall_worker_resident_memory_bytes')})"
    yield number("Workers", "Processes of the running attempt.", "short", workers)


def _time() -> Iterator[Panel]:
    text = "Seconds per second of the workers' main threads, by role and activity."
    yield graph("Time by activity", text, "s", (_rate("time_seconds_total", "role, activity"), "{{role}} {{activity}}"))
    steps = f"on (role) group_left () ({_rate('steps_total', 'role')} > 0)"
    parts = _rate("time_seconds_total", "role, activity", f'activity=~"{"|".join(STEP_CATEGORIES)}"')
    text = "Mean time of a worker's step, by role and activity."
    yield graph("Step time by activity", text, "s", (f"{parts} / {steps}", "{{role}} {{activity}}"), stacked=True)


def _rpc() -> Iterator[Panel]:
    latency = f"{_rate('rpc_seconds_total', 'role, peer')} / {_rate('rpc_calls_total', 'role, peer')}"
    yield graph("RPC latency", "Mean time from call to response.", "s", (latency, "{{role}} to {{peer}}"))
    sent, received = (_rate(f"rpc_{direction}_bytes_total", "role, peer") for direction in ("sent", "received"))
    queries = (sent, "{{role}} to {{peer}}: arguments"), (received, "{{role}} to {{peer}}: responses")
    yield graph("RPC traffic", "Bytes of tensors in the calls of workers and in the responses.", "Bps", *queries)


def _parameter_servers() -> Iterator[Panel]:
    yield from _rpc()
    rows = _rate("served_rows_total", "rank")
    yield graph(
        "Rows served", "Rows that each parameter server looks up, per second.", "short", (rows, "server {{rank}}")
    )
    calls, steps = (_rate(f"{name}_total", "rank") for name in ("served_calls", "updates"))
    queries = (calls, "server {{rank}}: calls"), (steps, "server {{rank}}: updates")
    yield graph("Server calls", "Calls and updates of weights per second.", "ops", *queries)
    busy = _rate("served_seconds_total", "rank")
    updates = _rate("update_seconds_total", "rank")
    text = "Seconds per second in which each parameter server answers calls and updates weights."
    queries = (busy, "server {{rank}}: calls"), (updates, "server {{rank}}: updates")
    yield graph("Server time", text, "s", *queries)
    memory = f"sum by (rank) ({_of('rolecall_worker_table_bytes')})"
    yield graph("Weights", "Memory of the weights of each parameter server.", "bytes", (memory, "server {{rank}}"))
    distinct = f"{_rate('look_up_sent_ids_total', 'rank')} / {_rate('look_up_ids_total', 'rank')}"
    text = "Distinct share of the ids that each trainer looks up, without those of bags that servers pool."
    yield graph("Distinct ids", text, "percentunit", (distinct, "rank {{rank}}"))


def _pipeline() -> Iterator[Panel]:
    flight = f"max by (rank) ({_of('rolecall_worker_micro_batches_in_flight')})"
    text = "Maximum number of micro-batches whose activations a stage holds."
    yield graph("Micro-batches in flight", text, "short", (flight, "rank {{rank}}"))
    text = "Share of each stage's step time without computation, over 5 minutes; needs the recording rules."
    yield graph("Bubble", text, "percentunit", (_of("rolecall:stage_bubble:ratio5m"), "rank {{rank}}"))
    text = "Seconds per second in which each stage computes and waits for its neighbors."
    selector = 'role="stage", activity=~"compute|wait"'
    spent = _rate("time_seconds_total", "rank, activity", selector)
    yield graph("Busy and waiting stages", text, "s", (spent, "rank {{rank}}: {{activity}}"))


def _rpc_pipeline() -> Iterator[Panel]:
    yield from _rpc()
    yield from _pipeline()


def _reinforce() -> Iterator[Panel]:
    yield from _rpc()
    steps = _rate("environment_steps_total", "rank")
    yield graph(
        "Environment steps", "Steps per second of each observer's environments.", "short", (steps, "rank {{rank}}")
    )
    lag = f"max by (rank) ({_of('rolecall_worker_policy_lag_updates')})"
    text = "Updates of the agent since the weights of the newest rollouts."
    yield graph("Policy lag", text, "short", (lag, "rank {{rank}}"))
    requests, batches, seconds = (
        _rate(f"inference_{what}_total", "rank") for what in ("requests", "batches", "seconds")
    )
    text = "Mean time of a request for actions from its arrival at the agent to the answer."
    yield graph("Inference latency", text, "s", (f"{seconds} / {requests}", "agent"))
    text = "Mean number of requests that the agent answers together."
    yield graph("Inference batch", text, "short", (f"{requests} / {batches}", "requests"))
    yield graph("Inference requests", "Requests that the agent answers per second.", "reqps", (requests, "requests"))


def _declared(workload: str) -> Iterator[Panel]:
    """A panel for each name that a workload declares for Prometheus, without those that every dashboard has."""
    declared: dict[str, list[Metric]] = {}
    for one in catalogue.load(workload).metrics:
        if not one.indexed and one.name not in _OF_ALL_WORKLOADS:
            declared.setdefault(one.name, []).append(one)
    for name, found in declared.items():
        labeled = f'{{job="$job", metric="{name}"}}'
        better = next((f"{one.direction.capitalize()} is better." for one in found if one.direction), "")
        text = " ".join([*(one.help for one in found), better]).rstrip()
        # The values at the end are results, some of which no step reports.
        query = f"rolecall_job_metric{labeled} or rolecall_job_result{labeled}"
        yield graph(name, text, _UNITS.get(found[0].unit, "short"), (query, "{{split}}"), least=None)


def _of(metric: str) -> str:
    return f'{metric}{{job="$job"}}'


def _by_role(metric: str) -> str:
    """Of the roles that the cluster's dashboard shows."""
    return f'{metric}{{role=~"$role"}}'


def _rate(measurement: str, by: str, selector: str = "") -> str:
    """The rate of a counter of the job's workers, of those that the selector's labels choose."""
    labels = ", ".join(filter(None, ('job="$job"', selector)))
    return f"sum by ({by}) (rate(rolecall_worker_{measurement}{{{labels}}}[$__rate_interval]))"


_OF_ALL_WORKLOADS = {"steps", "samples_per_s", "wall_s", "epochs"}
_MEASUREMENTS = {
    "embedding-ddp": _parameter_servers,
    "reinforce": _reinforce,
    "resnet-pipeline": _rpc_pipeline,
    "rnn-lm": _parameter_servers,
    "transformer-pipeline": _pipeline,
}

if __name__ == "__main__":
    for name, content in files().items():
        (FOLDER / name).write_text(content)
