"""Measures Rolecall next to Ray and TorchX, for `docs/comparison.md`: `python -m benchmarks.peers [SYSTEM ...]`.

All systems run the training of `training.py` with two workers on the CPU. `rolecall_job`, `ray_job.py` and
`torchx_job.py` connect it to each system as that system's documentation shows. The peers are in an environment of
their own, because they are no dependencies of Rolecall:

    python -m venv build/peers
    build/peers/bin/pip install torch==2.14.1 'ray[default,train]==2.60.0' torchx==0.7.0
    .venv/bin/python -m benchmarks.peers --rounds 3

Each round starts the systems one after the other, so that none runs during the measurement of another. The figures:

- the seconds from the start of the submitting command to the end of the first optimizer step of all workers. A job
  before it fills the caches.
- the seconds from SIGKILL of one worker to the end of the first step after the restart, and to the end of the other
  worker's process.
- the same after SIGSTOP of one worker, for at most a minute.
- the memory of the idle system: the proportional set size of its processes, 20 s after its start.
"""
