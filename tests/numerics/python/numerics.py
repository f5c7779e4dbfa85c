#!/usr/bin/env python3
"""Write small training runs that another program can replay and compare.

  numerics.py list
  numerics.py write CASE OUT_DIR        (CASE may be 'all')
  numerics.py sampler --len L --world W --seed S --epoch E
                      [--drop-last] [--no-shuffle]

A case trains a small model for a few steps on the CPU in fp32 with one
thread, deterministically: as one process on the concatenated batch, or with
DistributedDataParallel on 2 or 4 gloo processes. DDP runs are checked here
against the single process before they are written. OUT_DIR gets

  case.json             all settings; rates, losses and norms of every step
  initial.safetensors   parameters and buffers before the first step
  batches.safetensors   stepS.rankR.microM.input and .label
  gradients.safetensors the first step's gradients, reduced and clipped;
                        a parameter that no rank used is missing
  final.safetensors     parameters and buffers after the last step (rank 0)

SyncBatchNorm runs on GPUs only in PyTorch. Its cases are emulated: batch
normalisation over the concatenated batch in one process gives the same
values, with the loss averaged over ranks.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from cases import CASES, LAYERS, MODELS, SHAPES
import common  # found through cases: benchmarks/python


def sampler_indices(length, world, seed, epoch, drop_last, shuffle=True):
    """Return each rank's indices as torch's DistributedSampler gives them."""
    indices = []
    for rank in range(world):
        sampler = DistributedSampler(range(length), world, rank, shuffle,
                                     seed, drop_last)
        sampler.set_epoch(epoch)
        indices.append(list(sampler))
    return indices


def make_samples(case, count, seed):
    """Return `count` inputs and labels drawn from a fixed seed."""
    random = torch.Generator().manual_seed(seed)
    shape = count, *SHAPES[case.model]
    if case.model == "tied":
        inputs = torch.randint(32, shape, generator=random)
        return inputs, inputs[:, 0].clone()
    labels = torch.randint(10, (count,), generator=random)
    inputs = torch.randn(shape, generator=random)
    return inputs + labels.view(-1, *[1] * (len(shape) - 1)) / 10, labels


def make_plan(case, steps):
    """Return plan[step][rank]: micro-batches (inputs, labels, branch), or
    None for a rank that has no data left; and each step's epoch."""
    ranks = range(case.world)
    plan, epochs = [], []
    if case.samples:
        inputs, labels = make_samples(case, case.samples, 1)
        for epoch in range(2):
            indices = sampler_indices(case.samples, case.world, 0, epoch,
                                      case.drop_last)
            for start in range(0, len(indices[0]), case.batch):
                parts = [indices[rank][start:start + case.batch]
                         for rank in ranks]
                plan.append([[(inputs[part], labels[part], None)]
                             for part in parts])
                epochs.append(epoch)
        return plan, epochs
    lasts = case.steps_of_rank or (steps,) * case.world
    sizes = case.batches_of_rank or (case.batch,) * case.world
    for step in range(max(lasts)):
        plan.append([None] * case.world)
        for rank in ranks:
            if step < lasts[rank]:
                seed = 1000 * (step + 1) + 100 * rank
                # Heads a+a, a+b, b+b, b+a, ...: some steps leave one unused.
                branch = (step + (rank % 2)) // 2 % 2
                plan[step][rank] = [
                    (*make_samples(case, sizes[rank], seed + micro),
                     branch if case.model == "branch" else None)
                    for micro in range(case.accumulate)]
    return plan, [0] * len(plan)


# Training ------------------------------------------------------------------

def make_model(case):
    """Return the case's model with the same initial values every time."""
    torch.manual_seed(0)
    return MODELS[case.model]()


def make_optimizer(case, model):
    """Return the optimizer and its learning rate schedule."""
    kind = getattr(torch.optim, case.optimizer)
    optimizer = kind(model.parameters(), **dict(case.settings))

    def factor(step):
        if not case.warmup:
            return 1.0
        return case.world * min(1.0, (step + 1) / case.warmup)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def finish_step(case, model, optimizer, schedule):
    """Clip and update; return the facts of this step and its gradients."""
    facts = {"lr": optimizer.param_groups[0]["lr"]}
    if case.clip:
        norm = nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        facts["grad_norm"] = norm.item()
    gradients = {name: parameter.grad.clone()
                 for name, parameter in model.named_parameters()
                 if parameter.grad is not None}
    optimizer.step()
    schedule.step()
    return facts, gradients


def parameters(model):
    """Return copies of the parameters, a tied weight once."""
    return {name: parameter.detach().clone()
            for name, parameter in model.named_parameters()}


def state(model):
    """Return copies of parameters and buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return {**parameters(model), **buffers}


def train_single(case, plan):
    """Train in one process on the batches of all ranks, concatenated."""
    model = make_model(case)
    optimizer, schedule = make_optimizer(case, model)
    log, first = [], None
    for step in plan:
        batches = [batch for micros in step if micros for batch in micros]
        inputs, labels, branches = zip(*batches)
        sizes = [len(part) for part in labels]
        if case.model == "branch":
            logits = [model(part, branch)
                      for part, branch in zip(inputs, branches)]
        else:
            logits = model(torch.cat(inputs)).split(sizes)
        losses = [F.cross_entropy(*pair) for pair in zip(logits, labels)]
        active = sum(micros is not None for micros in step)
        ranks = case.world if case.divide_by == "world" else active
        optimizer.zero_grad(set_to_none=True)
        (torch.stack(losses).sum() / (ranks * case.accumulate)).backward()
        values = iter([loss.item() for loss in losses])
        log.append({"losses": [micros and [next(values) for _ in micros]
                               for micros in step]})
        facts, gradients = finish_step(case, model, optimizer, schedule)
        log[-1].update(facts)
        first = first or gradients
    return log, first, model


def train_ddp(case, plan, rank):
    """Train one rank under DDP."""
    model = make_model(case)
    ddp = DistributedDataParallel(model,
                                  find_unused_parameters=case.find_unused)
    if case.hook:
        hook = getattr(default_hooks, f"{case.hook}_compress_hook")
        ddp.register_comm_hook(None, hook)
    optimizer, schedule = make_optimizer(case, model)
    uneven = contextlib.nullcontext()
    if case.steps_of_rank:
        uneven = ddp.join(
            divide_by_initial_world_size=case.divide_by == "world")
    log, first = [], None
    with uneven:
        for step in plan:
            if step[rank] is None:
                break
            optimizer.zero_grad(set_to_none=True)
            losses = []
            for micro, (inputs, labels, branch) in enumerate(step[rank], 1):
                last = micro == case.accumulate
                args = (inputs,) if branch is None else (inputs, branch)
                with contextlib.nullcontext() if last else ddp.no_sync():
                    loss = F.cross_entropy(ddp(*args), labels)
                    (loss / case.accumulate).backward()
                losses.append(loss.item())
            facts, gradients = finish_step(case, model, optimizer, schedule)
            log.append({"losses": losses, **facts})
            first = first or gradients
    return log, first, model


def run_rank(rank, case, steps, folder):
    """Run one process of run_ddp and leave its results in the folder."""
    prepare()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store",
                            rank=rank, world_size=case.world)
    plan, _ = make_plan(case, steps)
    log, first, model = train_ddp(case, plan, rank)
    torch.save((log, first, parameters(model), state(model)),
               f"{folder}/{rank}.pt")
    # DDP is gone by now. If it held the group last, it could wait for ever
    # for a thread of the group that is still dropping a Python hook.
    dist.destroy_process_group()


def run_ddp(case, steps):
    """Run all ranks; return the merged log, then every rank's first
    gradients, parameters and state."""
    with tempfile.TemporaryDirectory() as folder:
        # Forked: a rank that starts afresh imports torch for seconds.
        mp.start_processes(run_rank, (case, steps, folder),
                           nprocs=case.world, start_method="fork")
        results = [torch.load(f"{folder}/{rank}.pt")
                   for rank in range(case.world)]
    logs, *tensors = zip(*results)
    merged = []
    for step, facts in enumerate(max(logs, key=len)):
        losses = [log[step]["losses"] if step < len(log) else None
                  for log in logs]
        merged.append({**facts, "losses": losses})
    return merged, *tensors


def prepare():
    """Make this process deterministic."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


# Output --------------------------------------------------------------------

def difference(first, second):
    """Return the largest absolute difference of two dicts of tensors."""
    return max((first[name].double() - second[name].double()).abs().max()
               .item() for name in first)


def write(name, steps, folder):
    """Run one case, check it and write its files."""
    case = CASES[name]
    plan, epochs = make_plan(case, steps)
    log, gradients, model = train_single(case, plan)
    final, untrained = state(model), make_model(case)
    checks = {}
    emulated = case.world == 1 or case.sync_batchnorm
    limit = 1e-3 if case.hook else 1e-5
    if not emulated:
        log, gradients, trained, states = run_ddp(case, steps)
        gradients, final = gradients[0], states[0]
        checks["between_ranks"] = max(
            difference(trained[0], other) for other in trained)
        checks["to_single_process"] = difference(trained[0],
                                                 parameters(model))
        local = case.model == "bn"  # batch statistics differ between ranks
        if checks["between_ranks"] > 0 or (
                checks["to_single_process"] > limit and not local):
            sys.exit(f"numerics.py: {name}: DDP is off: {checks}")
    checks["start_to_end"] = difference(parameters(untrained), final)

    for facts, step, epoch in zip(log, plan, epochs):
        if case.model == "branch":
            facts["branch"] = [micros[0][2] for micros in step]
        if case.samples:
            facts["epoch"] = epoch
    folder.mkdir(parents=True, exist_ok=True)
    batches = {}
    for s, step in enumerate(plan):
        for r, micros in enumerate(step):
            for m, (inputs, labels, _) in enumerate(micros or []):
                batches[f"step{s}.rank{r}.micro{m}.input"] = inputs
                batches[f"step{s}.rank{r}.micro{m}.label"] = labels
    for file, tensors in [("initial", state(untrained)), ("final", final),
                          ("gradients", gradients), ("batches", batches)]:
        common.save_safetensors(folder / f"{file}.safetensors", tensors)
    optimizer, _ = make_optimizer(case, untrained)
    description = {
        "case": name, "torch": torch.__version__,
        "produced_by": "one process" if emulated else "DDP over gloo",
        **asdict(case), "settings": optimizer.defaults,
        "layers": " ".join(LAYERS[case.model].split()),
        "loss": "cross entropy, mean over the micro-batch",
        "max_abs_difference": checks, "steps": log}
    if case.samples:
        description["indices"] = [
            sampler_indices(case.samples, case.world, 0, epoch,
                            case.drop_last) for epoch in (0, 1)]
    (folder / "case.json").write_text(json.dumps(description, indent=1))
    print(json.dumps({"case": name, "steps": len(log),
                      "max_abs_difference": checks}), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the cases")
    writer = commands.add_parser("write", help="run a case, write its files")
    writer.add_argument("case", choices=["all", *CASES], metavar="CASE")
    writer.add_argument("out_dir", type=Path)
    writer.add_argument("--steps", type=int, default=6, metavar="N",
                        help="default: 6; sampler and join cases have theirs")
    sampler = commands.add_parser("sampler",
                                  help="print DistributedSampler's indices")
    sampler.add_argument("--len", type=int, required=True, metavar="L")
    sampler.add_argument("--world", type=int, required=True, metavar="W")
    sampler.add_argument("--seed", type=int, default=0, metavar="S")
    sampler.add_argument("--epoch", type=int, default=0, metavar="E")
    sampler.add_argument("--drop-last", action="store_true")
    sampler.add_argument("--no-shuffle", action="store_true")
    args = parser.parse_args()

    prepare()
    if args.command == "list":
        for name, case in CASES.items():
            print(f"{name:24} {case.text}")
    elif args.command == "sampler":
        indices = sampler_indices(args.len, args.world, args.seed, args.epoch,
                                  args.drop_last, not args.no_shuffle)
        print(json.dumps({**vars(args), "indices": indices}))
    elif args.case == "all":
        for name in CASES:
            write(name, args.steps, args.out_dir / name)
    else:
        write(args.case, args.steps, args.out_dir)


if __name__ == "__main__":
    main()
