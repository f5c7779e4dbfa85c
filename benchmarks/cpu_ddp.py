#!/usr/bin/env python3
"""Measure data-parallel training on two CPU processes beside Python's.

Runs the Python referee (tuned.py, DDP over Gloo) and `lockstep train --strategy ddp` in turn, at least five pairs, both
with two processes of one thread, the same model, batch, learning rate and kind of images, and writes medians and spread
to benchmarks/results/cpu_ddp_<cpu>_<date>.{json,md}.

Scope: Python's figure covers the steps alone, with the data in memory and no loader; Lockstep's is that of a whole
training epoch through the command, its loader, logging and loss accounting included.

  benchmarks/cpu_ddp.py [--pairs N] [--build build/release]
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv/bin/python3"
MODELS = {"cnn": {"lr": "0.01", "optimizer": "sgd", "data": "cifar10:{cifar}", "steps": "100"},
          "mlp": {"lr": "0.001", "optimizer": "adam", "data": "fashion-mnist", "steps": "300"}}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(command):
    """Return a command's standard output; its errors are shown when it fails."""
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"cpu_ddp.py: {' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def python_command(model, cifar):
    """Return the referee's command: DDP on two processes, batch 32 each."""
    data = ["--data", cifar] if model == "cnn" else []
    return [PYTHON, ROOT / "benchmarks/python/tuned.py", "--model", model, "--method", "ddp", "--device", "cpu",
            "--ranks", "2", "--batch", "32", "--lr", MODELS[model]["lr"], "--dtype", "fp32", "--steps",
            MODELS[model]["steps"], "--repeats", "5", *data]


def lockstep_command(lockstep, model, cifar, folder):
    """Return ours: the same job through the command."""
    setting = MODELS[model]
    return [lockstep, "train", "--model", model, "--data", setting["data"].format(cifar=cifar), "--strategy", "ddp",
            "--nproc", "2", "--device", "cpu", "--batch-size", "32", "--optimizer", setting["optimizer"], "--lr",
            setting["lr"], "--epochs", "3", "--eval-every", "0", "--json", "--run-dir", folder, "--overwrite"]


def measure(model, pairs, lockstep, cifar):
    """Return the rates (images/s over both processes) of both sides, pair by pair."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            theirs.append(json.loads(run(python_command(model, cifar)))["median"])
            document = json.loads(run(lockstep_command(lockstep, model, cifar, folder)))
            # The first epoch also warms up.
            ours.append(statistics.median(epoch["images_per_second"] for epoch in document["epochs"][1:]))
            print(f"{model} pair {pair + 1}: Lockstep {ours[-1]:,.0f}, Python {theirs[-1]:,.0f} images/s", flush=True)
    return ours, theirs


def spread(values):
    """Return median, p10 and p90."""
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]  # noqa: E731
    return {"median": statistics.median(values), "p10": at(0.1), "p90": at(0.9)}


def cpu_name():
    """Return the processor's name and the usable number of its CPUs."""
    name = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return (name.group(1) if name else "unknown"), len(os.sched_getaffinity(0))


def write(results, stem):
    """Write the result files."""
    stem.parent.mkdir(exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [f"# Data-parallel training on two CPU processes, {results['date']}", "",
             f"{results['cpu']}, {results['usable_cpus']} usable CPUs, load at start {results['load']:.2f}; "
             f"{results['versions']}; batch 32 a process, fp32, one thread a process; {results['pairs']} interleaved "
             "pairs. Images/s over both processes: median (p10 to p90). Python: steps alone, data in memory. Lockstep: "
             "whole epochs through the command, loader and logging included.", "",
             "| model | Lockstep | Python Gloo DDP | ratio within pairs |", "| --- | --- | --- | --- |"]
    for model, row in results["models"].items():
        cell = lambda s: f"{s['median']:,.0f} ({s['p10']:,.0f} to {s['p90']:,.0f})"  # noqa: E731
        ratio = row["ratio"]
        lines.append(f"| {model} | {cell(row['lockstep'])} | {cell(row['python'])} | "
                     f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f}) |")
    lines += ["", "Command: `benchmarks/cpu_ddp.py`"]
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, metavar="N")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", metavar="DIR")
    args = parser.parse_args()
    lockstep = args.build / "bin/lockstep"
    name, cpus = cpu_name()
    results = {"date": datetime.date.today().isoformat(), "cpu": name, "usable_cpus": cpus, "load": os.getloadavg()[0],
               "pairs": args.pairs, "models": {},
               "versions": run([lockstep, "--version"]).strip() + ", torch " +
               run([PYTHON, "-c", "import torch; print(torch.__version__)"]).strip()}
    with tempfile.TemporaryDirectory() as cifar:
        run([lockstep, "data", "make", "cifar10", cifar, "--images", "20000"])
        for model in MODELS:
            ours, theirs = measure(model, args.pairs, lockstep, cifar)
            results["models"][model] = {
                "lockstep": spread(ours), "python": spread(theirs),
                "ratio": spread([a / b for a, b in zip(ours, theirs)]),
                "lockstep_rates": ours, "python_rates": theirs,
                "commands": [" ".join(map(str, python_command(model, "DIR"))).replace(f"{ROOT}/", ""),
                             " ".join(map(str, lockstep_command(lockstep, model, "DIR", "RUN"))).replace(f"{ROOT}/", "")]}
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    write(results, ROOT / "benchmarks/results" / f"cpu_ddp_{slug}_{results['date']}")


if __name__ == "__main__":
    main()
