"""Benchmarks: every workload compared with the tutorial's protocol, one process, and a peer where users would pick one.

`make bench` runs all of them, `make bench BENCH=rnn_lm` one. Rules of every comparison:

- All contenders of a benchmark compute with the same data, sizes and optimizer, on the same two CPU cores: two workers
  with one thread each, or one process with two threads. Servers and masters share these cores.
- Runs are interleaved: every round runs each contender once. The result is the median over the rounds, because a shared
  machine drifts by more than the differences that matter.
- Rates are those of the steady state: steps after the first few, from the end of one to the end of the last.
"""
