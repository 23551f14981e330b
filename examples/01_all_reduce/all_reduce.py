"""Trains a small model on several ranks; its gradients meet in a tensor that all ranks can address.

    torchrun --standalone --nproc-per-node 4 examples/01_all_reduce/all_reduce.py

`train` is how a program uses parallel_tensor. The rest checks it: every rank must see every rank's
bytes, and a sum must agree with the exact one and with the one of torch.distributed.
"""

import os
import sys

import parallel_tensor as pt
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS, RATE = 100, 0.5


def train(model, inputs, labels, total, group):
    """Trains on this rank's part of the data; returns the weights, which all ranks agree on."""
    weights = parameters_to_vector(model.parameters()).detach()
    x = pt.empty(weights.shape, dtype=torch.float32, group=group)  # one per rank, all mapped here
    for _ in range(STEPS):
        x.local.copy_(gradients(model, inputs, labels, total))  # mine, an ordinary torch tensor
        pt.all_reduce_(x)  # now it is the sum over all ranks, on every rank
        weights -= RATE * x.local
        vector_to_parameters(weights, model.parameters())
    x.close()
    return weights


def gradients(model, inputs, labels, total):
    """This rank's share of the gradient: its sum over all ranks is that of the mean loss."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels, reduction="sum") / total
    loss.backward()
    return parameters_to_vector([p.grad for p in model.parameters()])


def check(mine, group):
    """All-reduces a tensor; returns one row of the table for each thing that must hold."""
    parts = gathered(mine)  # what every rank has, learnt without parallel_tensor
    exact = sum(part.double() for part in parts)
    magnitude = sum(part.double().abs() for part in parts).clamp_min(
        torch.finfo(torch.float32).tiny
    )
    reference = mine.cpu().clone()
    dist.all_reduce(reference)

    with pt.empty(mine.shape, dtype=mine.dtype, group=group) as x:
        x.local.copy_(mine)
        pt.barrier(group)  # all ranks have written
        unlike = sum(differing(x.peer(r).cpu(), parts[r]) for r in range(group.size))
        pt.all_reduce_(x)
        result = x.local.cpu().clone()

    def error(other):
        return float(((result.double() - other.double()).abs() / magnitude).max())

    tolerance = group.size * torch.finfo(mine.dtype).eps
    return [
        row("every rank sees every rank's bytes", mine, unlike, 0),
        row("all_reduce_ against a float64 sum", mine, error(exact), tolerance),
        row("all_reduce_ against torch.distributed", mine, error(reference), tolerance),
        row("all_reduce_ the same on all ranks", mine, differing_among_ranks(result), 0),
    ]


def gathered(tensor):
    """Every rank's tensor, by torch.distributed."""
    parts = [torch.empty_like(tensor, device="cpu") for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.cpu())
    return parts


def differing(a, b):
    """How many bytes of two tensors differ."""
    return int((a.view(torch.uint8) != b.view(torch.uint8)).sum())


def differing_among_ranks(tensor):
    """How many bytes of the other ranks' tensors differ from this rank's."""
    return sum(differing(tensor.cpu(), part) for part in gathered(tensor))


def row(name, tensor, error, tolerance):
    """One row of the table, with the largest error of all ranks: relative, or a count of bytes."""
    error = torch.tensor(float(error)).nan_to_num(nan=torch.inf)
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return name, dtype, tensor.nbytes, float(error), tolerance, float(error) <= tolerance


def main():
    """Checks one gradient, trains, prints the table; returns whether a check failed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # only to compare with
    group = pt.Group.from_env()  # rank and size, as torchrun set them
    if pt.driver_name() == "emulated":
        device, where = torch.device("cpu"), "the emulated driver: device memory is host memory"
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
        where = f"the CUDA driver: {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"

    digits = load_digits()
    mine = slice(group.rank, None, group.size)  # this rank's part of the data
    inputs = torch.tensor(digits.data[mine] / 16, dtype=torch.float32, device=device)
    labels = torch.tensor(digits.target[mine], device=device)
    torch.manual_seed(0)  # the same weights on every rank
    layers = torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    model = torch.nn.Sequential(*layers).to(device)

    gradient = gradients(model, inputs, labels, len(digits.target))
    rows = check(gradient, group) + check(gradient.bfloat16(), group)
    weights = train(model, inputs, labels, len(digits.target), group)
    unlike = differing_among_ranks(weights)
    rows.append(row(f"weights the same after {STEPS} steps", weights, unlike, 0))
    right = (model(inputs).argmax(1) == labels).sum().cpu()
    dist.all_reduce(right)

    failed = sum(not good for *_, good in rows)
    if group.rank == 0:
        print(f"\n{group.size} ranks on {where}\n")
        print(f"{'check':<39}{'dtype':<10}{'bytes':>7}{'max error':>12}{'tolerance':>12}  result")
        for name, dtype, nbytes, error, tolerance, good in rows:
            numbers = f"{nbytes:>7}{error:>12.2g}{tolerance:>12.2g}"
            print(f"{name:<39}{dtype:<10}{numbers}  {'ok' if good else 'FAILED'}")
        verdict = f"{failed} of {len(rows)} checks FAILED." if failed else "All checks passed."
        accuracy = int(right) / len(digits.target)
        print(f"\n{verdict} The trained model reads {accuracy:.1%} of the digits.", flush=True)
    dist.destroy_process_group()
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
