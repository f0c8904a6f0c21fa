"""torch-compile, law steps_leave_nothing_behind. Step after step, over one retained graph or new ones, failed or not, there
are no more Python objects than before."""
import gc, itertools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs): return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling(): return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def f(h): h = (h * p).sin()
    def forward():
        y = p * 1
        y = checkpoint(f, y)
    for _ in range(12):
        y = forward()
        note('step')
def keeps_growing(growth):
    rises = sum((after > before for before, after in itertools.pairwise(growth)))
    return rises > 0 and 3 * rises >= len(growth) and (growth[-1] > 0)
counts = []
def note(label, value=None):
    gc.collect()
    counts.extend([len(gc.get_objects())] * (label == 'step'))
run(checkpoint, lambda label, value=None: None, 'cpu')
gc.freeze()
run(checkpoint, note, 'cpu')
growth = [count - counts[2] for count in counts[2:]]
print('objects more than after the third step; due: 0; torch-compile:', growth)
sys.exit(keeps_growing(growth))
