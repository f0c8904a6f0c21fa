"""What shows a verdict as a script of its own: torch and the implementation alone, status 1 while the fault is there.

A script runs the program under plain and under the implementation and prints what both gave. Where a law measures more
than a program notes, the script has a small meter of its own, and what is due stands in it as a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from conformance.verdicts import Measured
from impls import Implementation, Kind

IMPORTS: Mapping[str, str] = MappingProxyType(
    {
        "functools.": "import functools",
        "StorageWeakRef": "from torch.multiprocessing.reductions import StorageWeakRef",
        "TorchDispatchMode": "from torch.utils._python_dispatch import TorchDispatchMode",
        "tree_leaves": "from torch.utils._pytree import tree_leaves",
        "tree_map": "from torch.utils._pytree import tree_map",
        "SimpleNamespace": "from types import SimpleNamespace",
        "nullcontext": "from contextlib import nullcontext",
    }
)
SUBJECTS: Mapping[Kind, str] = MappingProxyType({"checkpoint": "checkpoint", "graph": "graph", "offload": "OffloadModel"})
PLAIN: Mapping[Kind, str] = MappingProxyType(
    {
        "checkpoint": "plain = lambda function, *args, **kwargs: function(*args, **kwargs)",
        "graph": """nothing = lambda *args, **kwargs: nullcontext()
cloning = lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach().clone(), lambda x: x)
plain = SimpleNamespace(**{**vars(torch.autograd.graph), "saved_tensors_hooks": nothing, "save_on_cpu": nothing,
                           "allow_mutation_on_saved_tensors": cloning, "logged_backward": nothing})""",
        "offload": """def plain(model, device, *args, **kwargs):
    return (model if isinstance(model, torch.nn.Module) else torch.nn.Sequential(*model)).to(device)""",
    }
)

# A template sees to it that ``seen`` holds what is compared; ``subject`` is what the run is given, ``modes`` what it is in.
NOTES = """    show = lambda x: (type(x).__name__, {digits}, x.requires_grad) if isinstance(x, torch.Tensor) else x
    note = lambda label, value=None: seen.update({{label: str(tree_map(show, value))}})
"""
EXACT, ROUNDED = "x.tolist()", "[f'{y:.4g}' for y in x.flatten().tolist()]"
CALLS = """    def counting(function, *args, **kwargs):
        @functools.wraps(function, ())
        def counted(*args, **kwargs):
            name = getattr(function, "__name__", type(function).__name__)
            seen[name] = seen.get(name, 0) + 1
            return function(*args, **kwargs)
        return checkpoint(counted, *args, **kwargs)
"""
KERNELS = """    inside = [1]  # forward, and functions of regions that run in backward
    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            seen[name] = seen.get(name, 0) + (inside[0] > 0)
            return func(*args, **(kwargs or {}))
    def note(label, value=None):
        inside[0] -= label == "forward"
    def entering(function, *args, **kwargs):
        def entered(*args, **kwargs):
            inside[0] += 1
            try:
                return function(*args, **kwargs)
            finally:
                inside[0] -= 1
        return checkpoint(entered, *args, **kwargs)
"""
ALIVE = """    made, leaves = {}, []
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in tree_leaves(out):
                if isinstance(x, torch.Tensor) and x.dtype != torch.uint8 and x.untyped_storage().nbytes():
                    made.setdefault(x.untyped_storage()._cdata, StorageWeakRef(x.untyped_storage()))
            return out
    def note(label, value=None):
        leaves.extend(value if label == "leaves" else ())
        held = [x for x in tree_leaves((value, leaves, [x.grad for x in leaves])) if isinstance(x, torch.Tensor)]
        held = {x.untyped_storage()._cdata for x in held}
        seen[label] = sum(not made[at].expired() for at in made if at not in held)
"""
PACKED = """    def pack(x):
        seen[phase[-1]] = seen.get(phase[-1], 0) + 1
        return x.detach()
    phase = ["packed in forward"]
    def note(label, value=None):
        phase.extend(["packed in backward"] * (label == "forward"))
"""
SILENT = "    note = lambda label, value=None: None\n"


def _template(measured: Measured, exact: bool) -> tuple[str, str, str]:
    """The text that observes, the subject that the program is given, and the context that it runs in."""
    match measured.what:
        case "calls":
            return SILENT + CALLS, "counting", ""
        case "kernels":
            return KERNELS, "entering", "Count()"
        case "alive":
            return ALIVE, "checkpoint", "Watch()"
        case "packed":
            return PACKED, "checkpoint", "torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)"
        case _:
            return NOTES.format(digits=EXACT if exact else ROUNDED), "checkpoint", ""


def _observe(measured: Measured, exact: bool, device: str) -> str:
    text, subject, mode = _template(measured, exact)
    call = f'run({subject}, note, "{device}")'
    inside = f"with {mode}:\n            {call}" if mode else call
    swallow = f'    try:\n        {inside}\n    except Exception as error:\n        seen["error"] = print(repr(error))\n'
    return f"def observe(checkpoint):\n    seen = {{}}\n{text}{swallow}    return seen\n"


def _compare(measured: Measured, implementation: Implementation) -> str:
    subject = SUBJECTS[implementation.kind]
    match measured.what:
        case "values":
            return f"""{PLAIN[implementation.kind]}
expected, seen = observe(plain), observe({subject})
for label in expected | seen:
    print(label, "plain", expected.get(label), "{subject}", seen.get(label), sep="\\n  ")
sys.exit(expected != seen)"""
        case "raises":
            return f"""seen = observe({subject})
print("an error is due:", "and there was one" if "error" in seen else "and there was none")
sys.exit("error" not in seen)"""
        case "expected":
            return f"""seen = observe({subject})
labels = [label.removeprefix("expected ") for label in seen if label.startswith("expected ")]
for label in labels:
    print(label, "expected", seen["expected " + label], "seen", seen.get("seen " + label), sep="\\n  ")
sys.exit("error" in seen or any(seen["expected " + label] != seen.get("seen " + label) for label in labels))"""
    sign, bound = (">", "at most") if measured.at_most else ("!=", "exactly")
    return f"""due, seen = {dict(measured.due)!r}, observe({subject})
print("due, {bound}:", due, "seen:", {{label: seen.get(label, 0) for label in due}})
sys.exit(any(seen.get(label, 0) {sign} due[label] for label in due))"""


def script(
    source: str, implementation: Implementation, law: str, measured: Measured, options: str = "", device: str = "cpu"
) -> str:
    """A program as a script. ``law`` is said at its head; ``options`` are arguments for checkpoint, as text."""
    exact = implementation.kind != "checkpoint" or "exact-sums" in implementation.capabilities
    binding = implementation.importing(SUBJECTS[implementation.kind])
    if options:
        binding += f"\ncheckpoint = functools.partial(checkpoint, {options})"
    body = [source.removeprefix("import torch\n")]
    body += [_observe(measured, exact, device), _compare(measured, implementation)]
    text = "\n\n".join(part.strip("\n") for part in body) + "\n"
    imports = ["import sys", "import torch", *(line for word, line in IMPORTS.items() if word in binding + text)]
    ordered = [
        *sorted(line for line in imports if line.startswith("import")),
        *sorted(line for line in imports if line.startswith("from")),
    ]
    return f'"""{implementation.name}: {law}"""\n' + "\n".join([*ordered, binding]) + "\n\n" + text
