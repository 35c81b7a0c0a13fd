"""What several workloads decide alike before a gang meets. Torch-free."""


def require_shares(batch_size: int, trainers: int) -> None:
    """Raises `ValueError` if a trainer would have nothing of a global batch."""
    if batch_size < trainers:
        raise ValueError(
            f"batch_size {batch_size} is shared by {trainers} trainers; set it to {trainers} or more, "
            f"or take at most {batch_size} trainers"
        )
