"""torch-compile, law all_claimed_features_combined. Programs that mix features which an implementation keeps alone equal
plain too."""
import os, sys, types
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

class ReadTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
def run(checkpoint, note, device):
    torch.manual_seed(2)
    p1 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    x0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    kept14 = []
    def f1(a2, a3):
        kept9 = []
        def f5(a6, a7):
            h8 = a6 * a7
            kept9.append(h8)
            return torch.sin(h8)
        h13 = ReadTwice.apply((checkpoint(f5, a2 @ a3, a3) * kept9[0]))
        kept14.append(h13)
        return torch.sin(h13)
    h16 = checkpoint(f1, x0, p1)
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-compile {seen.get(label)}")
sys.exit(len(wrong) > 0)
