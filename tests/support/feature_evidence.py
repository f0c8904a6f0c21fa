"""How a feature shows in a drawn program, other than by what the generator says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from conformance.programs.backward_calls import Request
from conformance.programs.generator.builder import ALIASES, NAMES
from conformance.programs.generator.features import FEATURES
from conformance.programs.generator.layers import FUNCTIONS
from conformance.programs.generator.operators import DTYPES, mixture
from conformance.programs.generator.operators import OPERATORS as SMALL_OPERATORS
from conformance.programs.generator.rewrites import kept
from conformance.programs.program import Block, Line, Op, Program, Region, Statement, walk

OPERATORS = {**SMALL_OPERATORS, "layers": FUNCTIONS}
# In the program's text, where that is enough.
TEXTS = {
    "many-outputs": r"return (?s:.*) \* 9\b",
    "unusual-containers": r"checkpoint\(f\d+, .*(OrderedDict|Output|return_types|PackedSequence)\b",
    "batched-seeds": r"is_grads_batched=True",
    "container-outputs": r"return ([\[({]|Pair|Box)(?s:.*)note\('f\d+ returned'",
    "containers": r"= box\d+[.\[]",
    "complex": r"torch\.complex64(?s:.*)\n {8,}\w+ = .*\.conj\(\)",
    "create-graph": r"create_graph=True",
    "grad": r"torch\.autograd\.grad\(.* retain_graph=True",
    "inputs": r"inputs=\[",
    "keyword": r"checkpoint\(f\d+, .*\w+=\w+",
    "layer-modules": r"\n {8,}\w+ = .*layer1\(",
    "training-layers": r"\n {8,}\w+ = .*layer1\(",
    "modules": r"\n {8,}\w+ = m\d+\(",
    "mutated": r"with torch\.no_grad\(\): \w+\.mul_",
    "mutated-closure": r"with torch\.no_grad\(\): \w+\.mul_",
    "no-grad-outputs": r"return .*\.detach\(\), \(",
    "non-contiguous": r"device=device\)\.t\(\)",
    "non-tensor-outputs": r"return .*None, .*7",
    "non-tensors": r"len\(s\d+\)(?s:.*)checkpoint\(f\d+, .*(None, .*'text'|3, .*torch\.float32)",
    "stream": r"note\('stream after",
    "unlike-leaves": r"\* v0\b|checkpoint\(f\d+, .*\bv0\b",
    "unused-outputs": r"return .*torch\.tanh",
    "view-outputs": r"return .*\.t\(\)",
}


def _read(body: tuple[Statement, ...]) -> Iterator[str]:
    for one in body:
        match one:
            case Op() | Line():
                yield from one.args
            case Block():
                yield from _read(one.body)
            case Region():
                yield from one.passed


def _closed_over(program: Program) -> set[str]:
    """What functions read that they are not passed and do not make."""
    found: set[str] = set()
    for region in program.regions:
        own = {*region.parameters, *(name for name, _ in region.unpack)}
        for one in region.body:
            match one:
                case Op():
                    own.add(one.target)
                case Region():
                    own.update(name for name, _ in one.targets)
                case Block():
                    own.update(op.target for op in one.body if isinstance(op, Op))
        found.update(name for name in _read(region.body) if name not in own and not name.startswith("kept"))
    return found


def _changed_after_being_read(region: Region) -> bool:
    lines = [(one, region.body[:number]) for number, one in enumerate(region.body) if isinstance(one, Line)]
    changes = [(one.args[0], before) for one, before in lines if ".mul_" in one.template]
    return any(name[0] == "h" and name in _read(before) for name, before in changes)


def _inside(program: Program, word: str) -> bool:
    """Whether a line with the word is about a tensor that its function makes, other than the first that it returns."""
    lines = ((region, one) for region in program.regions for one in region.body if isinstance(one, Line))
    about = [(one.args[0], region.returned[0]) for region, one in lines if word in one.template]
    return any(name[0] == "h" and name != returned for name, returned in about)


def _mixed(region: Region) -> set[str]:
    """What a function mixes, each with a weight of its own."""
    mixtures = (one for one in region.body if isinstance(one, Op) and one.template == mixture(len(one.args)).template)
    return {name for one in mixtures for name in one.args}


def _aliases(program: Program) -> set[str]:
    """The names of tensors that share memory with the one that they are made of."""
    bodies = (program.body, *(region.body for region in program.regions))
    return {one.target for body in bodies for one in body if isinstance(one, Op) and one.template in {*ALIASES}}


def _asked(program: Program) -> tuple[Request, ...]:
    """The requests of a program, none where one of them is for gradients of gradients."""
    return () if any(one.create_graph for one in program.requests) else program.requests


def _whole(program: Program, request: Request) -> bool:
    return request.inputs is None and request.outputs == program.outputs


# In what the program consists of.
PARTS: dict[str, Callable[[Program], bool]] = {
    "aliases": lambda program: any(
        any(name.startswith("alias") for name in _mixed(region)) and not _aliases(program).isdisjoint(region.passed)
        for region in program.regions
    ),
    "many-arguments": lambda program: any(
        len(_mixed(region).intersection(region.parameters)) > 6 for region in program.regions
    ),
    "named-arguments": lambda program: any(not _mixed(region).isdisjoint(NAMES) for region in program.regions),
    "again": lambda program: sum(_whole(program, one) and not one.retain for one in _asked(program)) > 1,
    "corrupted": lambda program: any(_changed_after_being_read(region) for region in program.regions),
    "escaping": lambda program: _inside(program, "append") and re.search(r"\* kept\d+\[0\]", program.source) is not None,
    "hooks": lambda program: _inside(program, "register_hook"),
    "closure": lambda program: bool(_closed_over(program)),
    "closure-intermediates": lambda program: any(name[0] == "h" for name in _closed_over(program)),
    "input-outputs": lambda program: any(name[0] == "a" for region in program.regions for name in region.returned),
    "long": lambda program: "SaveMany.apply" in program.source or program.source.count("torch.sin(") > 12,
    "nesting": lambda program: any(any(walk(region.body)) for region in program.regions),
    "no-grad": lambda program: any(isinstance(one, Block) and one.body for each in program.regions for one in each.body),
    "no-input-grad": lambda program: any(region.passed[0] == "c0" for region in program.regions),
    "partial": lambda program: any(len(one.outputs) < len(program.outputs) for one in _asked(program)),
    "repeated-inputs": lambda program: any(len({*one.passed}) < len(one.passed) for one in program.regions),
    "repeated-outputs": lambda program: any(len({*one.returned}) < len(one.returned) for one in program.regions),
    "retain": lambda program: any(one.retain and _whole(program, one) for one in _asked(program)),
    "seeds": lambda program: any(one.seeds for one in program.requests),
    "saves-hidden": lambda program: bool(kept(program.regions[0])),
    "through-regions": lambda program: any(program.regions[0].passed[0] in (one.inputs or ()) for one in _asked(program)),
}
BY_CHANCE = {"saves-hidden", "through-regions"}  # also where nobody asked for them
NEEDS = {"mutated-closure": ("closure",), "closure-intermediates": ("closure",), "through-regions": ("grad",)}
# What plain may raise of a program with the feature.
RAISING = {
    "again": "a second time",
    "corrupted": "in-?place operation",
    "mutated": "in-?place operation",
    "mutated-closure": "in-?place operation",
}


def is_allowed(error: BaseException | None, feature: str) -> bool:
    """Whether a program with the feature may end so under plain."""
    return error is None or (feature in RAISING and re.search(RAISING[feature], str(error)) is not None)


def shows(feature: str, program: Program) -> bool:
    """Whether the feature is seen in the program."""
    if feature in PARTS:
        return PARTS[feature](program)
    if feature in TEXTS:
        return re.search(TEXTS[feature], program.source) is not None
    if feature in DTYPES:
        return DTYPES[feature] in program.source
    texts = (re.escape(one.template) for one in OPERATORS[feature])
    return any(re.search(re.sub(r"\\\{[01]\\\}", r"\\w+", text), program.source) for text in texts)


assert FEATURES.keys() == {*PARTS, *TEXTS, *DTYPES, *OPERATORS}, "a feature shows in no way, or in several"
