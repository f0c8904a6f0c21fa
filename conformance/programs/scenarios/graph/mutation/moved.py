"""Programs that change saved tensors in inference mode, or give them other memory, where changes are allowed."""

from __future__ import annotations

from typing import Any

import torch


def steps(graph: Any, note: Any, device: str, *, steps: Any, result: bool) -> None:
    p = torch.rand(3, dtype=torch.float64, device=device, requires_grad=True)
    note("leaves", (p,))
    with graph.allow_mutation_on_saved_tensors():
        a = p.exp() if result else p * 1
        saved = [a]
        t, old = a.detach(), a.detach()
        other = torch.rand(3, dtype=torch.float64, device=device)
        for step in steps:
            if step == "inference":
                with torch.inference_mode():
                    t.mul_(2)
            elif step == "inference item":
                with torch.inference_mode():
                    t[0] = 0
            elif step == "inference out":
                with torch.inference_mode():
                    torch.add(t, 1, out=t)
            elif step == "change":
                t.mul_(2)
            elif step == "change the other":
                other.mul_(2)
            elif step == "change the old":
                old.mul_(2)
            elif step == "set":
                t.set_(other)
            elif step == "set anew":
                t.set_(torch.rand(3, dtype=torch.float64, device=device))
            elif step == "set back":
                t.set_(old)
            else:
                saved += [p * t, a * old, p * other]
        torch.cat(saved).sum().backward()
    note("gradients", [p.grad])
    note("values", [t, old, other])
