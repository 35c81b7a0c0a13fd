"""The tests that need a GPU: `make test-gpu`. `make test-gpu DEVICE=cpu` rehearses them on the CPU. See docs/gpu.md."""
