"""torch-compile, law hooks_see_inputs_passed_by_keyword. A tensor passed by keyword is saved like one that is passed by
position."""
import collections, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling():
        return region(function, *args, **kwargs)  # belongs to what is being compiled
    anew = types.FunctionType(region.__code__.replace(), globals())
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(anew, backend="aot_eager")(function, *args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(3)
    c0 = torch.randn(3, 3, dtype=torch.float64, device=device)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2, a3):
        h4 = a2 * a3
        return (checkpoint((lambda a6, a7: a6 * a7), a6=h4, a7=a3), h4)
    f1_value = checkpoint(f1, p0, a3=c0)
    h10 = f1_value[0]
    h11 = f1_value[1]
    h12 = h10 * h11
    h13 = h12 @ p0
    h19 = checkpoint((lambda a15, a16: torch.sin(a15 * a16)), a15=h13, a16=h10)
    end = h19 * p0
    note('saved', [p0, c0, h11, h12, p0, h13, h10, h19, p0])
seen = []
def note(label, value=None):
    if label == "saved":
        due, packed = (collections.Counter(x.untyped_storage()._cdata for x in tensors) for tensors in (value, seen))
        print(f"hooks see: due {due.total()}, torch-compile {packed.total()}, missing {(due - packed).total()}")
        sys.exit(bool(due - packed or packed.keys() - due.keys()))
with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
    run(checkpoint, note, "cpu")
