#!/usr/bin/env python3
"""Exchange state dicts with another program.

  state_dicts.py write MODEL OUT_DIR    MODEL: resnet18, resnet50, gpt2
  state_dicts.py check MODEL DIR
  state_dicts.py script OUT_DIR

`write` leaves model.safetensors (parameters and buffers under torchvision's
or Hugging Face's names), x.safetensors (a batch) and y.safetensors (what the
model in evaluation answers); for gpt2 also the forms in which its state dicts
are found: bare (without "transformer."), untied (without lm_head.weight) and
old (with the masks of old files). `check` loads DIR/ours.safetensors with
strict=True and compares its answer to DIR/x.safetensors with
DIR/ours_y.safetensors. `script` leaves scripted.pt, x and y.
"""

import sys
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
for folder in ("benchmarks/python", "src/lockstep/models/python"):
    sys.path.insert(0, str(ROOT / folder))
import models  # noqa: E402
from common import load_safetensors, save_safetensors  # noqa: E402
from gpt2_names import hugging_face, referee  # noqa: E402

TOLERANCE = 1e-5
VOCABULARY, POSITIONS, LAYERS, HEADS, WIDTH = 61, 16, 2, 3, 24


def make(name, seed):
    """Return a model whose every value and buffer is its own."""
    torch.manual_seed(seed)
    if name == "gpt2":
        model = models.GPT(VOCABULARY, POSITIONS, LAYERS, HEADS, WIDTH)
    elif name == "resnet18":
        model = models.resnet18(classes=7, image_size=32)
    else:
        model = models.resnet50(classes=7, image_size=96)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch(name):
    """Return an input."""
    if name == "gpt2":
        return torch.randint(VOCABULARY, (2, 11))
    size = 32 if name == "resnet18" else 96
    return torch.randn(4, 3, size, size)


def write(name, folder):
    """Write a model, an input and the answer."""
    model, x = make(name, 1), batch(name)
    if name != "gpt2":
        with torch.no_grad():
            model(batch(name))  # moves the running statistics
    state = model.state_dict()
    state = hugging_face(state) if name == "gpt2" else state
    save_safetensors(folder / "model.safetensors", state)
    if name == "gpt2":
        bare = {key.removeprefix("transformer."): value
                for key, value in state.items()}
        untied = {key: value for key, value in state.items()
                  if key != "lm_head.weight"}
        old = dict(bare)
        for layer in range(LAYERS):
            old[f"h.{layer}.attn.bias"] = torch.ones(
                1, 1, POSITIONS, POSITIONS, dtype=torch.uint8).tril()
            old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        for form, tensors in (("bare", bare), ("untied", untied),
                              ("old", old)):
            save_safetensors(folder / f"{form}.safetensors", tensors)
    save_answer(model, x, folder)


def save_answer(model, x, folder):
    """Write an input and the model's answer in evaluation."""
    model.eval()
    with torch.no_grad():
        save_safetensors(folder / "y.safetensors", {"y": model(x)})
    save_safetensors(folder / "x.safetensors", {"x": x})


def check(name, folder):
    """Load the other program's state and compare the answers."""
    model = make(name, 2)
    state = load_safetensors(folder / "ours.safetensors")
    model.load_state_dict(referee(state) if name == "gpt2" else state,
                          strict=True)
    model.eval()
    x = load_safetensors(folder / "x.safetensors")["x"]
    y = load_safetensors(folder / "ours_y.safetensors")["y"]
    with torch.no_grad():
        torch.testing.assert_close(y, model(x), rtol=TOLERANCE, atol=TOLERANCE)


def script(folder):
    """Write a TorchScript file, an input and the answer."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5),
        nn.Linear(8, 10))
    model(torch.randn(4, 3, 8, 8))
    torch.jit.script(model).save(str(folder / "scripted.pt"))
    torch.save(model.state_dict(), folder / "state_dict.pt")
    save_answer(model, torch.randn(4, 3, 8, 8), folder)


def main():
    """Run the command line."""
    command, *names, folder = sys.argv[1:]
    torch.set_num_threads(1)
    {"write": write, "check": check, "script": script}[command](
        *names, Path(folder))


if __name__ == "__main__":
    main()
