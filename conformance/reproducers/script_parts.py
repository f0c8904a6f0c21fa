"""The parts that scripts are put together from: heads, what plain is, and a meter for each thing that a law measures.

Words in capitals are filled in by ``conformance.reproducers.script``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from impls import Kind

WIDTH = 128
MODULES = ("collections", "contextlib", "faulthandler", "functools", "gc", "traceback", "types")
OURS = ("conformance.programs.scenarios.contexts",)
HOOK = "sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone"
SUBJECTS: Mapping[Kind, str] = MappingProxyType({"checkpoint": "checkpoint", "graph": "graph", "offload": "OffloadModel"})
CALL = "plain = lambda function, *args, **kwargs: function(*args, **kwargs)"
MODEL = """def plain(model, device, *args, **kwargs):
    return (model if isinstance(model, torch.nn.Module) else torch.nn.Sequential(*model)).to(device)"""
NOTHING = "lambda *args, **kwargs: contextlib.nullcontext()"
CLONING = """lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().clone(), lambda x: x)"""
# What plain has in the place of a name of torch.autograd.graph, where a program uses that name.
UNHOOKED: Mapping[str, str] = MappingProxyType(
    {
        "saved_tensors_hooks": NOTHING,
        "save_on_cpu": NOTHING,
        "allow_mutation_on_saved_tensors": CLONING,
        "logged_backward": NOTHING,
    }
)

SHOW = (
    "show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) "
    "if torch.is_tensor(x) else x"
)
# The same for two runs that may take sums in another order: what it makes of a tensor is equal but for rounding.
SHOW_NEAR = """class Near(tuple):  # equal but for %.4g units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= %.4g * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)"""
SHOWN_NEAR = "torch.utils._pytree.tree_map(show, value)"
SHOWN = f"str({SHOWN_NEAR})"
NOTE = "note = lambda label, value=None: notes.update({label: %s})"
# Where a program counts copies between devices, those that are made to show a value are none of its own.
NOTE_ASIDE = """def note(label, value=None):
    with torch.utils._python_dispatch._disable_current_modes():
        notes[label] = %s"""
VALUES = """PLAIN
SHOW
NOTE
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, SUBJECT):
    try:
        run(judged, note, DEVICE)
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)COSTS]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, NAME {seen.get(label)}")
sys.exit(len(wrong) > 0)
"""
ERROR = VALUES.replace('"raised"', "type(error).__name__")
LEFT = """SHOW

def observe(SUBJECT):
    leaves, shown = [], []
    def note(label, value=None):
        leaves.extend(value if label == "leaves" else ())
        shown.append([(number, show(leaf.grad)) for number, leaf in enumerate(leaves)])
    try:
        run(SUBJECT, note, DEVICE)
    except Exception as error:
        print("error:", repr(error))
    note("end")
    return shown

PLAIN
expected, seen = sum(observe(plain), []), observe(SUBJECT)[-1]
due = [f"leaf {number}: {gradient}" for number, gradient in expected]
wrong = [f"leaf {number}: {gradient}" for number, gradient in seen if (number, gradient) not in expected]
print("left behind by NAME:", *wrong, "which plain never has; it has:", *dict.fromkeys(due), sep="\\n  ")
sys.exit(len(wrong) > 0)
"""
EXPECTED = """notes = {}
SHOW
NOTE
run(SUBJECT, note, DEVICE)
labels = [label.removeprefix("expected ") for label in notes if label.startswith("expected ")]
wrong = [label for label in labels if notes["expected " + label] != notes.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {notes['expected ' + label]}, NAME {notes.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
"""
RAISES = """try:
    run(SUBJECT, lambda label, value=None: None, DEVICE)
except Exception as error:
    sys.exit(print("an error is due, and there is one:", repr(error)))
sys.exit(print("an error is due, and NAME raises none") or 1)
"""
FAILS = """try:
    run(SUBJECT, lambda label, value=None: None, DEVICE)
except BaseException as error:
    sys.exit(print("no error is due, and NAME raises", repr(error)) or 1)
print("no error is due, and there is none")
"""
ENDS = """child = os.fork()
if child == 0:
    with contextlib.suppress(BaseException):
        run(SUBJECT, lambda label, value=None: None, DEVICE)
    os._exit(77)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("a process that runs this is due to reach the end, which is status 77; with NAME it ends with", status)
sys.exit(status != 77)
"""
HANGS = """faulthandler.dump_traceback_later(SECONDS, exit=True)  # ends what hangs, with status 1, and shows where it is
print("an end is due within SECONDS seconds; where NAME comes to none, it is shown below", flush=True)
with contextlib.suppress(Exception):
    run(SUBJECT, lambda label, value=None: None, DEVICE)
faulthandler.cancel_dump_traceback_later()  # the interpreter may take long to end
sys.exit(print("NAME has come to an end"))
"""
HANG_SECONDS = 30  # more than a case may take where laws are held
NOTED = """seen = {}
run(SUBJECT, lambda label, value=None: seen.update({label: str(value)}), DEVICE)
"""
CALLS = """seen = collections.Counter()

def counting(function, *args, **kwargs):
    @functools.wraps(function, ())
    def counted(*args, **kwargs):
        seen[getattr(function, "__name__", type(function).__name__)] += 1
        return function(*args, **kwargs)
    return SUBJECT(counted, *args, **kwargs)

run(counting, lambda label, value=None: None, DEVICE)
"""
# What called the operator, or the engine of autograd: torch calls what a module, a mode or a compiled function does through
# functions of its own, and code that it generates has no module.
CALLER = """names = ((f, f.f_globals.get("__name__", "torch.")) for f, _ in traceback.walk_stack(sys._getframe(1)))
        caller = next(f for f, name in names if not name.startswith("torch.") or name == "torch.autograd.graph")"""
KERNELS = """seen = collections.Counter()

class Count(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        CALLER
        seen[func.overloadpacket.__name__] += caller.f_globals is globals()  # what the program calls, and no backward
        return func(*args, **(kwargs or {}))

with Count():
    run(SUBJECT, lambda label, value=None: None, DEVICE)
"""
ALIVE = """made, leaves, seen = set(), [], {}

def storages(tree):
    tensors = [x for x in torch.utils._pytree.tree_leaves(tree) if torch.is_tensor(x) and x.dtype != torch.uint8 and x.numel()]
    return {torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()) for x in tensors}

class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return made.update(storages(result := func(*args, **(kwargs or {})))) or result

def note(label, value=None):
    leaves.extend(value if label == "leaves" else ())
    seen[label] = sum(not one.expired() for one in made - storages([value, leaves, [x.grad for x in leaves]]))

gc.disable()  # what only the collector finds lives too long
with Watch():
    run(SUBJECT, note, DEVICE)
    note("end")
"""
INSIDE = """made, seen = {}, {}

class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        CALLER
        inside = caller.f_globals is globals() and caller.f_code.co_name REGION  # a function of a region
        for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(result)):
            made.setdefault(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()), inside)
        return result

def note(label, value=None):
    FORGET
    seen[label] = max(seen.get(label, 0), sum(made[one] and not one.expired() for one in made))

gc.disable()  # what only the collector finds lives too long
with Watch():
    run(SUBJECT, note, DEVICE)
"""
FORGET = 'made.update(dict.fromkeys(made, False) if label in ("forward", "held 1") else {})  # what counts is recomputed'
SAVED = """seen = []

def note(label, value=None):
    if label == "saved":
        due, packed = (collections.Counter(x.untyped_storage()._cdata for x in tensors) for tensors in (value, seen))
        print(f"hooks see: due {due.total()}, NAME {packed.total()}, missing {(due - packed).total()}")
        sys.exit(bool(due - packed or SURPLUS))

with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
    run(SUBJECT, note, DEVICE)
"""
PACKED = """counts = [0]  # in forward, in backward

def pack(x):
    counts[-1] += 1
    return x.detach()

with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
    run(SUBJECT, lambda label, value=None: counts.extend([0] * (label == "forward")), DEVICE)
seen = dict(zip(("packed in forward", "packed in backward"), counts, strict=False))
"""
OBJECTS = """counts = []

def note(label, value=None):
    gc.collect()
    counts.extend([len(gc.get_objects())] * (label == "step"))

run(SUBJECT, lambda label, value=None: None, DEVICE)  # whatever is made once only is made here
gc.freeze()
run(SUBJECT, note, DEVICE)
growth = [count - counts[2] for count in counts[2:]]
print("objects more than after the third step; due: 0; NAME:", growth)
rises = sum(after > before for before, after in zip(growth, growth[1:]))  # one alone may be another thread's
sys.exit(rises > 0 and 3 * rises >= len(growth) and growth[-1] > 0)
"""
MOVED = """seen = collections.Counter()

class Moves(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for source in {"_to_copy": args[:1], "copy_": args[1:2]}.get(func.overloadpacket.__name__, ()):
            if source.device.type != result.device.type and result.numel():
                way = "to" if result.device.type == "cpu" else "from"
                seen.update({f"copies {way} the CPU": 1, f"bytes {way} the CPU": result.numel() * result.element_size()})
        return result

with Moves():
    run(SUBJECT, lambda label, value=None: None, DEVICE)
"""
COUNTED = """for label, due in DUE.items():
    print(f"{label}: due is BOUND{due}, NAME {seen.get(label, 0)}")
sys.exit(any(seen.get(label, 0) SIGN due for label, due in DUE.items()))
"""
COUNTED_ONCE = """print("LABEL: due is BOUNDNUMBER, NAME", seen.get("LABEL", 0))
sys.exit(seen.get("LABEL", 0) SIGN NUMBER)
"""
TAILS: Mapping[str, str] = MappingProxyType(
    {"values": VALUES, "error": ERROR, "left": LEFT, "expected": EXPECTED, "raises": RAISES, "fails": FAILS, "ends": ENDS}
    | {"hangs": HANGS}
    | {"saved": SAVED, "objects": OBJECTS}
    | {"noted": NOTED + COUNTED, "calls": CALLS + COUNTED, "kernels": KERNELS + COUNTED, "alive": ALIVE + COUNTED}
    | {"inside": INSIDE + COUNTED, "recomputed": INSIDE + COUNTED, "packed": PACKED + COUNTED, "moved": MOVED + COUNTED}
)
