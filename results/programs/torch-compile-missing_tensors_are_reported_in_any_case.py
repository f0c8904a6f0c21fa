"""torch-compile, law missing_tensors_are_reported_in_any_case. With determinism_check="none" a recomputation that does not
bring a tensor that is needed is still an error."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling():
        return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)
checkpoint = functools.partial(checkpoint, determinism_check='none')

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    recomputing = []
    def inner(h):
        changed = 'fewer' if recomputing else ''
        if changed == 'fewer':
            return h
        return h.exp().sin()
    def outer(h):
        return inner(h)
    y = checkpoint(outer, p * 1)
    recomputing.append(True)
    y.backward(torch.ones_like(y))

try:
    run(checkpoint, lambda label, value=None: None, 'cpu')
except Exception as error:
    print('an error is due, and there is one:', repr(error))
    sys.exit(0)
print('an error is due, and torch-compile raises none')
sys.exit(1)
