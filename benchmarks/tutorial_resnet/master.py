# pyright: standard, reportPrivateImportUsage=false
"""The driver: holds references to both parts, feeds random images, and steps torch's DistributedOptimizer."""

import torch
from torch import nn
from torch.distributed import autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from benchmarks.tutorial_resnet import STAGES, TutorialParams
from benchmarks.tutorial_resnet.parts import Part
from rolecall.kit.worker import WorkerContext


def run(context: WorkerContext[TutorialParams]) -> None:
    params = context.params
    parts = [rpc.remote(f"stage-{index}", Part, args=(index, params.classes)) for index in range(STAGES)]
    weights = [weight for part in parts for weight in part.rpc_sync().weights()]
    optimizer = DistributedOptimizer(torch.optim.SGD, weights, lr=0.05)
    mean_squares, loss = nn.MSELoss(), torch.tensor(torch.nan)
    for step in range(1, params.steps + 1):
        images = torch.randn(params.batch_size, 3, params.size, params.size)
        labels = torch.randint(params.classes, (params.batch_size,))
        wanted = nn.functional.one_hot(labels, params.classes).float()
        with dist_autograd.context() as context_id:
            outputs = []
            for micro_batch in images.split(params.batch_size // params.micro_batches):
                features = parts[0].remote().forward(rpc.RRef(micro_batch))
                outputs.append(parts[1].rpc_async().forward(features))
            loss = mean_squares(torch.cat(torch.futures.wait_all(outputs)), wanted)
            dist_autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        context.report(step, loss=loss.detach(), samples=params.batch_size)
    context.report.result({"loss": loss.item()})
