"""torch-compile, law deep_graphs_are_freed. A graph in which regions have saved five thousand tensors is freed on a thread
whose stack is small, of 512 KiB."""
import contextlib, os, sys, threading  # threads do not always meet: where it shows nothing, run it again
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
    note('leaves', (p,))
    def f(h):
        for _ in range(5000): h = h.sin()
        return h
    def step():
        y = p
        for _ in range(1): y = checkpoint(f, y)
        y.sum().backward()
    before = threading.stack_size(524288)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    threading.stack_size(before)
    note('gradients 0', [p.grad])
child = os.fork()
if child == 0:
    with contextlib.suppress(BaseException): run(checkpoint, lambda label, value=None: None, 'cpu')
    os._exit(77)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print('a process that runs this is due to reach the end, which is status 77; with torch-compile it ends with', status)
sys.exit(status != 77)
