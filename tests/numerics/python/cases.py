"""The small training runs that numerics.py writes: their models and settings."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

# One copy of the models serves the benchmarks and these cases.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks/python"))

import models  # noqa: E402


# Models --------------------------------------------------------------------

class BatchNormNet(nn.Module):
    """Conv(3,8,3,p1)-BN-ReLU-Conv(8,16,3,s2)-BN-ReLU-pool(1)-Linear(16,10)."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


class BranchNet(nn.Module):
    """Linear(16,16)-ReLU, then head a or b, each Linear(16,10).

    The batch says which head: 0 is a, 1 is b. Head `never` is never used.
    """

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.a = nn.Linear(16, 10)
        self.b = nn.Linear(16, 10)
        self.never = nn.Linear(16, 10)

    def forward(self, x, branch):
        x = F.relu(self.stem(x))
        return self.b(x) if branch else self.a(x)


class TiedNet(nn.Module):
    """Embedding(32,16), mean over 8 tokens, Linear(16,16), tanh, tied head.

    head.weight IS embedding.weight; the files hold it once, under that name.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens).mean(1)
        return self.head(torch.tanh(self.hidden(x)))


MODELS = {"cnn": models.cnn, "mlp": models.mlp, "bn": BatchNormNet,
          "branch": BranchNet, "tied": TiedNet}
SHAPES = {"cnn": (3, 32, 32), "mlp": (784,), "bn": (3, 16, 16),
          "branch": (16,), "tied": (8,)}
LAYERS = {
    "cnn": "Conv2d(3,64,3) ReLU AdaptiveAvgPool2d(1) Flatten Linear(64,10); "
           "names of a Sequential",
    "mlp": "Flatten fc1=Linear(784,128) ReLU fc2=Linear(128,10)",
    "bn": BatchNormNet.__doc__, "branch": BranchNet.__doc__,
    "tied": TiedNet.__doc__}


# Cases ---------------------------------------------------------------------

@dataclass(frozen=True)
class Case:
    """What a case does. The defaults are plain SGD on equal batches."""

    text: str
    model: str
    world: int = 1
    batch: int = 8                # samples per rank and micro-batch
    accumulate: int = 1           # micro-batches per step, no_sync but last
    optimizer: str = "SGD"
    settings: tuple = (("lr", 0.1),)  # of torch.optim.<optimizer>
    find_unused: bool = False     # find_unused_parameters
    sync_batchnorm: bool = False  # emulated in one process
    batches_of_rank: tuple = ()   # sizes, if the ranks' batches differ
    clip: float = 0.0             # clip_grad_norm_ after the reduction
    warmup: int = 0               # lr * world * min(1, (step + 1) / warmup)
    hook: str = ""                # fp16 or bf16 gradient compression
    samples: int = 0              # dataset served by DistributedSampler
    drop_last: bool = False       # of the sampler
    steps_of_rank: tuple = ()     # uneven inputs, under Join
    divide_by: str = "world"      # Join: by 'world' or by 'active' ranks
    tolerance: float = 1e-5       # of a replay's final values, absolute


MOMENTUM = (("lr", 0.05), ("momentum", 0.9), ("weight_decay", 0.01))
ADAM = (("lr", 0.001), ("weight_decay", 0.01))
ADAMW = (("lr", 0.001), ("weight_decay", 0.5))
LONE = {f"{model}-single": Case("one process, plain SGD", model)
        for model in MODELS}
PAIRS = {f"{model}-ddp{world}": Case(
    "DDP, plain SGD", model, world, find_unused=model == "branch")
    for model in MODELS for world in (2, 4)}
CASES = {
    **LONE, **PAIRS,
    "mlp-ddp2-accum4": Case("4 micro-batches, each loss divided by 4",
                            "mlp", 2, batch=4, accumulate=4),
    "cnn-ddp4-accum2": Case("2 micro-batches", "cnn", 4, accumulate=2),
    "tied-ddp2-accum2": Case("2 micro-batches", "tied", 2, accumulate=2),
    "bn-sync2": Case("SyncBatchNorm", "bn", 2, sync_batchnorm=True),
    "bn-sync4": Case("SyncBatchNorm", "bn", 4, sync_batchnorm=True),
    "bn-sync2-uneven": Case("SyncBatchNorm, unequal batches: statistics over "
                            "all samples, gradients averaged over ranks",
                            "bn", 2, sync_batchnorm=True,
                            batches_of_rank=(8, 3)),
    "cnn-ddp2-clip": Case("clip to 0.1", "cnn", 2, clip=0.1),
    "mlp-ddp4-accum2-clip": Case("clip to 0.5 after accumulation", "mlp", 4,
                                 batch=4, accumulate=2, clip=0.5),
    "mlp-ddp2-momentum": Case("momentum, weight decay", "mlp", 2,
                              settings=MOMENTUM),
    "mlp-ddp2-dampening": Case("momentum with dampening", "mlp", 2,
                               settings=(*MOMENTUM, ("dampening", 0.5))),
    "mlp-ddp2-nesterov": Case("Nesterov momentum, weight decay", "mlp", 2,
                              settings=(*MOMENTUM, ("nesterov", True))),
    "mlp-ddp2-adam": Case("Adam, L2 weight decay", "mlp", 2,
                          optimizer="Adam", settings=ADAM),
    "mlp-ddp2-adamw": Case("AdamW, decoupled weight decay", "mlp", 2,
                           optimizer="AdamW", settings=ADAMW),
    "mlp-ddp2-amsgrad": Case("Adam with amsgrad and a short memory", "mlp", 2,
                             optimizer="Adam",
                             settings=(*ADAM, ("betas", (0.9, 0.5)),
                                       ("amsgrad", True))),
    "branch-ddp2-adamw": Case("a head that no rank used in a step keeps its "
                              "values and state: no decay, no step count",
                              "branch", 2, find_unused=True,
                              optimizer="AdamW", settings=ADAMW),
    "branch-ddp2-momentum": Case("as branch-ddp2-adamw, with momentum",
                                 "branch", 2, find_unused=True,
                                 settings=MOMENTUM),
    "cnn-ddp4-warmup": Case("learning rate scaled by the world size after a "
                            "linear warm-up of 4 steps", "cnn", 4, warmup=4),
    "mlp-ddp2-fp16": Case("gradients cast to fp16, divided by the world size, "
                          "summed in fp16, cast back: fp16 holds every value "
                          "of gradients.safetensors exactly", "mlp", 2,
                          hook="fp16", tolerance=2e-6),
    "mlp-ddp2-bf16": Case("the same in bf16", "mlp", 2, hook="bf16",
                          tolerance=2e-5),
    "cnn-ddp4-fp16": Case("4 ranks: the order of the sum shows", "cnn", 4,
                          hook="fp16", tolerance=1e-4),
    "cnn-ddp4-bf16": Case("4 ranks: the order of the sum shows", "cnn", 4,
                          hook="bf16", tolerance=1e-3),
    "mlp-ddp2-sampler-pad": Case("2 epochs of DistributedSampler, padded; the "
                                 "last batch of an epoch is smaller", "mlp",
                                 2, samples=37),
    "mlp-ddp2-sampler-drop": Case("the same with drop_last", "mlp", 2,
                                  samples=37, drop_last=True),
    "mlp-ddp4-sampler-pad": Case("4 ranks, padded", "mlp", 4, samples=37),
    "mlp-ddp4-sampler-drop": Case("4 ranks, drop_last", "mlp", 4, samples=37,
                                  drop_last=True),
    "mlp-ddp2-join": Case("uneven inputs: a rank without data adds zeros, "
                          "gradients are divided by the world size", "mlp", 2,
                          steps_of_rank=(5, 3)),
    "mlp-ddp2-join-active": Case("uneven inputs: gradients are divided by "
                                 "the number of ranks that still have data",
                                 "mlp", 2, steps_of_rank=(3, 5),
                                 divide_by="active"),
    "mlp-ddp4-join": Case("uneven inputs on 4 ranks", "mlp", 4,
                          steps_of_rank=(2, 6, 4, 5)),
}
