"""Writes the initial parameters of a Python model: per parameter a line "name [shape]" and its float32 values.

Usage: initial_values.py NAME SEED CHANNELS HEIGHT WIDTH CLASSES          cnn, mlp, resnet18, resnet50
       initial_values.py gpt2 SEED VOCABULARY POSITIONS LAYERS HEADS WIDTH
"""

import sys
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks/python"))
import models  # noqa: E402
from gpt2_names import hugging_face  # noqa: E402


def make(name, sizes):
    """Return a fresh model."""
    if name == "gpt2":
        vocabulary, positions, layers, heads, width = sizes
        return models.GPT(vocabulary, positions, layers, heads, width)
    channels, height, width, classes = sizes
    if name == "cnn":
        return nn.Sequential(nn.Conv2d(channels, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                             nn.Linear(64, classes))
    if name == "mlp":
        return nn.Sequential(OrderedDict([("flatten", nn.Flatten()), ("fc1", nn.Linear(channels * height * width, 128)),
                                          ("relu", nn.ReLU()), ("fc2", nn.Linear(128, classes))]))
    return {"resnet18": models.resnet18, "resnet50": models.resnet50}[name](classes, height)


name, seed = sys.argv[1], int(sys.argv[2])
torch.manual_seed(seed)
model = make(name, list(map(int, sys.argv[3:])))
parameters = dict(model.named_parameters())
for key, parameter in (hugging_face(parameters) if name == "gpt2" else parameters).items():
    sys.stdout.buffer.write(f"{key} {list(parameter.shape)}\n".encode()
                            + parameter.detach().contiguous().numpy().tobytes())
