"""Writes the initial parameters of Python's cnn or mlp: per parameter a line "name [shape]" and its float32 values.

Usage: initial_values.py NAME SEED CHANNELS HEIGHT WIDTH CLASSES
"""

import sys
from collections import OrderedDict

import torch
from torch import nn

name = sys.argv[1]
seed, channels, height, width, classes = map(int, sys.argv[2:])
torch.manual_seed(seed)
if name == "cnn":
    model = nn.Sequential(nn.Conv2d(channels, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(64, classes))
else:
    model = nn.Sequential(OrderedDict([("flatten", nn.Flatten()), ("fc1", nn.Linear(channels * height * width, 128)),
                                       ("relu", nn.ReLU()), ("fc2", nn.Linear(128, classes))]))
for key, parameter in model.named_parameters():
    sys.stdout.buffer.write(f"{key} {list(parameter.shape)}\n".encode() + parameter.detach().numpy().tobytes())
