"""What needs a GPU: `make test-gpu`. `make test-gpu DEVICE=cpu` rehearses it on the CPU. See docs/gpu.md."""
