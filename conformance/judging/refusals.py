"""What makes an error a refusal: the implementation raised it, and its message names what is wrong.

That is an argument, an option or an operation. The words that count are declared: by the law, by the capabilities and options
that it needs, and here for what every program does. An error whose message has none of these words is a crash: it is about
something else, such as the sizes of tensors that an operator should never have got.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from conformance.programs.program import FILE
from impls import Kind
from impls.implementation import OPTIONAL_NAMES

# Words for what every program of a kind does, and what may be refused.
SAVING = frozenset({"backward", "in place", "in-place", "inplace", "saved", "saved_tensors", "unpack", "unpacked"})
RECOMPUTING = frozenset({"recompute", "recomputed", "recomputing", "recomputation"})
ALWAYS: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {"checkpoint": SAVING | RECOMPUTING, "graph": SAVING | {"hook", "hooks"}, "offload": SAVING | {"parameter", "buffer"}}
)
# Words for what some laws are about.
CAPTURE = frozenset({"capture", "captured", "preserve_rng_state"})
HOOKS = frozenset({"hook", "hooks"})
INFERENCE = frozenset({"inference"})
REQUIRES_GRAD = frozenset({"require grad", "require gradient", "requires grad", "requires_grad", "grad_fn"})
TRACERS = frozenset({"make_fx", "trace", "traced", "tracing"})
TRACING = frozenset({"torch.compile", "compile", "compiled", "compiling", "Dynamo", "graph break"})
TRANSFORMS = frozenset({"functorch", "torch.func", "vmap", "vmapped"})
TYPES = frozenset({"type", "types", "non-tensor"})  # not "argument", which is in Python's error for a lost one, too

# Words by which an implementation that lacks a capability can name it in a refusal.
CAPABILITIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "autocast": frozenset({"autocast"}),
        "closure-gradients": REQUIRES_GRAD,
        "compiled": TRACING,
        "containers": frozenset({"container", "containers", "list", "tuple", "dict", "deque", "dataclass", "Box", "Pair"}),
        "context-fn": frozenset({"context_fn"}),
        "decorator": frozenset({"decorator", "function"}),
        "determinism-check": frozenset({"determinism_check"}),
        "early-stop": frozenset({"early_stop"}),
        "early-stop-option": frozenset({"early_stop"}),
        "exact-sums": frozenset(),
        "explicit-generators": TYPES | {"generator", "generators"},
        "hidden-saves": frozenset(),
        "higher-order": frozenset({"create_graph", "autograd.grad", ".grad()"}),
        "keyword-arguments": frozenset({"keyword", "keywords", "kwargs"}),
        "nesting": frozenset({"nest", "nested", "nesting", "inside"}),
        "non-tensor-arguments": TYPES,
        "non-tensor-outputs": frozenset({"output", "outputs", "return", "returned"}),
        "recomputes": frozenset(),
        "rng": frozenset({"random", "rng"}),
        "rng-option": frozenset({"preserve_rng_state"}),
        "subset-requests": frozenset({"inputs", "autograd.grad", ".grad()"}),
        "logging": frozenset({"logged_backward"}),
        "min-bytes": frozenset({"min_bytes"}),
        **{name: frozenset(names) for name, names in OPTIONAL_NAMES.items()},
    }
)


def expected_names(kind: Kind, needs: Iterable[str], options: Iterable[str], about: Iterable[str]) -> frozenset[str]:
    """The words of which a refusal must have one: for what programs of a kind do, capabilities, options, and the law."""
    return ALWAYS[kind].union(*(CAPABILITIES[need] for need in needs), options, about)


def names_one(message: str, names: Iterable[str]) -> bool:
    """Whether one of the names is in the message as a whole word, in upper or lower case."""
    words = "|".join(map(re.escape, sorted(names)))
    return bool(words) and re.search(rf"(?<![\w-])(?:{words})(?![\w-])", message, re.IGNORECASE) is not None


def is_of_an_operator(error: BaseException) -> bool:
    """Whether an operator that a function of the program called raised it; then it is not the implementation that refuses.

    Each frame of a traceback has the instruction that raised; for a ``raise`` statement of the program that is its own.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename != FILE or trace.tb_frame.f_code.co_name == "run":
        return False
    at = next((one.opname for one in dis.get_instructions(trace.tb_frame.f_code) if one.offset == trace.tb_lasti), "")
    return at not in ("RAISE_VARARGS", "RERAISE")
