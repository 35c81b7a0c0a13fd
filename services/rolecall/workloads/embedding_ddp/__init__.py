"""`embedding-ddp`: a classifier or regression with embeddings on parameter servers and dense layers in DDP.

After the PyTorch tutorial "Combining Distributed DataParallel with Distributed RPC Framework". Input: tables of
categorical and numeric columns with a label: yes or no, one of several classes, or a number.

`params`: the parameters. `check`: checks before the gang starts. `build`: batches, the table on the servers and the
dense layers in the trainers. `remote`: the model over both, and the updates. `model`: the model, shared with exports.
`training`: the loop, losses and metrics. `export`: the exported archive. This file, `params` and `check`
never import torch.
"""

from rolecall.kit import EVALUATED, Metric, Role, RoleCount, Workload
from rolecall.kit.declarations import CLASSIFIER, TRAINING
from rolecall.workloads.embedding_ddp.check import check_counts, check_node
from rolecall.workloads.embedding_ddp.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="embedding-ddp",
    summary="A recommender-style model: embeddings on parameter servers, dense layers in DDP trainers",
    package=__name__,
    params=Params,
    roles={
        Role.MASTER: RoleCount(default=1, least=1, most=1),
        Role.PARAMETER_SERVER: RoleCount(default=1, least=1, most=64),
        Role.TRAINER: RoleCount(default=2, least=1, most=256),
    },
    metrics=(
        *TRAINING,
        Metric("auc", "Area under the ROC curve of a binary label.", "ratio", "higher", EVALUATED),
        *CLASSIFIER,
        Metric("rmse", "Root mean squared error of a numeric label.", direction="lower", splits=EVALUATED),
        Metric("mae", "Mean absolute error of a numeric label.", direction="lower", splits=EVALUATED),
        Metric("bad_rows", "Rows of the data that can't be parsed.", direction="lower"),
    ),
    rpc=True,
    process_group=(Role.TRAINER,),
    # Parameter servers are not `busy`: look-ups and pooling wait for memory and the network rather than for a core.
    # With `pool_at: server` and bags of 50 to 100 vectors, a second thread of the server shortened steps of 24 ms by 2
    # to 4%, as much as equal runs differ.
    check_counts=check_counts,
    check_node=check_node,
)
