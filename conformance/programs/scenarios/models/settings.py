"""A program that looks at the settings of the process before a region, after its forward and after its backward."""

from __future__ import annotations

import torch


def looked_at(checkpoint, note, device, *, noise, fails, nested):
    import gc
    import random
    import sys
    import threading
    import warnings
    of, backends = torch.nn.modules.module, torch.backends
    def settings():
        numpy = sys.modules.get("numpy")
        return {
            "threads": (torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()),
            "matmul precision": torch.get_float32_matmul_precision(),
            "denormal numbers": torch.tensor([5e-324], dtype=torch.float64).mul(1).item(),
            "default": (torch.get_default_device(), torch.get_default_dtype(), torch.is_grad_enabled()),
            "determinism": (torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory),
            "libraries": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.mkldnn.enabled),
            "attention": (backends.cuda.flash_sdp_enabled(), backends.cuda.math_sdp_enabled()),
            "anomaly mode": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            "hooks of modules": [len(vars(of)[f"_global_{kind}_hooks"]) for kind in ("forward_pre", "forward", "backward")],
            "hooks for saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
            "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
            "warnings": [one for one in warnings.filters if one[1] is one[3] is None and one[2].__module__ == "builtins"],
            "recursion": sys.getrecursionlimit(),
            "collector": (gc.isenabled(), gc.get_threshold()),
            "functions that Python calls": (sys.gettrace(), sys.getprofile(), sys.excepthook, warnings.showwarning),
            "random": random.getstate(),
            "numpy.random": numpy and str(numpy.random.get_state(legacy=False)),
        }
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    armed = []
    def f(h):
        h = h.sin()
        if noise:
            torch.rand_like(h)
        if armed:
            raise ValueError(armed.pop())
        return h.cos()
    def outer(h):
        return checkpoint(f, h.exp())
    def changed():
        return [name for name, value in settings().items() if value != before[name]]
    before = settings()
    y = checkpoint(outer if nested else f, p)
    note("forward", y)
    note("changed by forward", changed())
    if fails:
        armed.append("program")
        try:
            y.backward(torch.ones_like(y), retain_graph=True)
        except ValueError as error:
            note("came", str(error))
        armed.clear()
        note("changed by an error", changed())
        p.grad = None
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("changed by backward", changed())
