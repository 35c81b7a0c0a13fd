"""What can be decided about a `resnet-pipeline` job before its gang meets. Torch-free."""

from rolecall.kit.builders import Builder, check_builder
from rolecall.kit.images.sources import check_images
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.params import Params, block_names

_MOST = 256


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` unless the stages divide by the replicas, and the blocks suffice for a pipeline's stages."""
    stages, replicas, most = counts[Role.STAGE], params.replicas, _most_stages(params)
    if stages % replicas or not 2 <= stages // replicas <= most:
        raise ValueError(
            f"{stages} stages for {replicas} replica(s): roles.stage counts the stages of all replicas, and each has 2 "
            f"or more and at most as many as its model has blocks; legal: {replicas} times 2 to {most}"
        )
    if params.cuts is not None and len(params.cuts) != stages // replicas - 1:
        raise ValueError(
            f"cuts has {len(params.cuts)} block(s) for {stages // replicas} stages per replica; it needs "
            f"{stages // replicas - 1}, one for every stage but the first"
        )


def _most_stages(params: Params) -> int:
    """The blocks of a model of the job's own are counted when it is built."""
    return len(block_names(params.model)) if isinstance(params.model, str) else _MOST


def check_node(params: Params, role: Role) -> None:
    """On a stage's node, raises `InputError` unless the images are there (any of them may play the first stage) and
    the job may bring its model.
    """
    if role is not Role.STAGE:
        return
    if isinstance(params.model, Builder):
        check_builder(params.model)
    check_images(params.data)


def rpc_threads(params: Params, counts: dict[Role, int]) -> int:
    """In protocol `tutorial` every micro-batch may hold one thread of a stage, and others must still be answered."""
    return params.micro_batches + 2
