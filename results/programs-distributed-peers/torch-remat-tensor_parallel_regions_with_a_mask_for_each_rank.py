"""torch-remat, law tensor_parallel_regions_with_a_mask_for_each_rank. What ranks have split between them in a region gets a
mask of each rank's own, and the same one again. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        def inner(self, h):
            h = torch.tanh(self.first(h))
            return self.second(torch.nn.functional.dropout(h, 0.25))
        def forward(self, h): return h + checkpoint(self.inner, h)
    model = torch.nn.Sequential(*[Block() for _ in range(1)])
    torch.manual_seed(3 + dist.get_rank())
    for step in range(2):
        x = torch.ones(3, 4).cumsum(0).requires_grad_()
        y = model(x)
        y.square().mean().backward()
        grads = [one.grad for one in model.parameters()]
        note(f'gradients {step}', [*(getattr(one, 'full_tensor', lambda one=one: one)() for one in grads)])
def kept(x): return x.detach().clone() if torch.is_tensor(x) else x
def differ(x, y, tolerance):
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) != len(y) or any((differ(one, other, tolerance) for one, other in zip(x, y)))
    if torch.is_tensor(x) and torch.is_tensor(y) and (x.shape == y.shape) and (x.dtype == y.dtype):
        return not (torch.equal(x, y) or float((x.double() - y.double()).abs().max()) <= tolerance)
    return str(x) != str(y)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo"); rank = dist.get_rank(); expected, seen = ({}, {})
run(plain, lambda label, value=None: expected.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
try: run(checkpoint, lambda label, value=None: seen.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
except Exception as error:
    print(f'rank {rank}, torch-remat: {error!r}', flush=True); os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 9.777545928955079e-05)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, torch-remat {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
