"""Every law has a mutant, which it catches by a small program, and without the fault the law is kept."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, Law, all_laws
from conformance.judging.program_size import operations
from conformance.judging.result import Result
from conformance.judging.verdicts import Verdict
from conformance.mutants.faults.native.seams import begin_with
from conformance.mutants.mutant import UNBREAKABLE, Copy, Mutant, modules, mutant, mutants
from conformance.mutants.score import Attempt
from conformance.simulated_device.device import second
from impls import Implementation
from impls.native import NativeUnavailableError
from impls.native.region import require_extension
from impls.state import accelerators

LAWS = all_laws()
OWN = (AttributeError, LookupError, NameError, TypeError)

SMALL = 6  # operations that a program which shows a fault may have


BY_LAW = sorted(mutants(), key=lambda mutant: mutant.law)  # the explorer keeps the programs of one law at a time
FIRST = list({mutant.law: mutant for mutant in BY_LAW[::-1]}.values())[::-1]


def place(law: Law) -> str:
    """The device on which faults are put before a law: the CPU, or the simulated one where that takes its place."""
    return "sim" if law.lacks("cpu") else "cpu"


# The others are judged by the quick profile of a run: the same programs, on the same device.
NOT_JUDGED_OTHERWISE = [mutant for mutant in FIRST if mutant.profile != "quick" or place(LAWS[mutant.law]) != "cpu"]


@functools.cache
def explorer(profile: str, device: str = "cpu") -> Explorer:
    second("cpu")  # autograd counts the devices at its first backward
    accelerators.accelerator.cache_clear()  # which may have been asked for before there was a simulated one
    return Explorer(device, replace(PROFILES[profile], small=SMALL), 0)


def hold(name: str) -> Result:
    """Hold a mutant to its law."""
    mutant = next(one for one in BY_LAW if one.name == name)
    law = LAWS[mutant.law]
    return explorer(mutant.profile, place(law)).hold(law, mutant.implementation, mutant.original)


def own_errors(mutant: Mutant, judge: Callable[[Implementation], object]) -> set[str]:
    """Errors that Python raises in the code of a mutant itself: what it stands in for has another shape than it expects.

    What a statement of the mutant raises is its fault.
    """
    found: set[str] = set()
    own = (str(Path(inspect.getfile(Copy)).parent), inspect.getfile(mutant.change), __file__)

    def watched(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except OWN as error:
                innermost = error.__traceback__
                while innermost is not None and innermost.tb_next is not None:
                    innermost = innermost.tb_next
                assert innermost is not None
                code = innermost.tb_frame.f_code
                if code.co_filename.startswith(own) and dis.opname[code.co_code[innermost.tb_lasti]] != "RAISE_VARARGS":
                    found.add(f"{type(error).__name__}: {error} ({Path(code.co_filename).name}:{innermost.tb_lineno})")
                raise

        return call

    class Watched(Copy):
        def wrap(self, part: str, path: str, make: Callable[[Any], Any], *, only_here: bool = False) -> None:
            def made(there: Any) -> Any:
                new = make(there)
                return new if isinstance(new, type) or not callable(new) else watched(new)

            super().wrap(part, path, made, only_here=only_here)

    judge(replace(mutant, change=lambda copy: mutant.change(Watched(copy._own))).implementation)
    return found


SURVIVED = [mutant for mutant in BY_LAW if not mutant.ends_process]
FATAL = [mutant for mutant in BY_LAW if mutant.ends_process]


def require(mutant: Mutant) -> None:
    """Skip the test of a mutant of native where that cannot be built."""
    if mutant.original.name == "native":
        try:
            require_extension()
        except NativeUnavailableError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("mutant", SURVIVED, ids=lambda mutant: f"{mutant.law}: {mutant.name}")
def test_its_law_catches_a_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    require(mutant)
    law = LAWS[mutant.law]
    assert (law.family, law.kind) == (mutant.family, mutant.original.kind)
    result = hold(mutant.name)
    killed = not result.as_declared and not result.vacuous
    size = operations(result.program, place(law), law.kind) if result.program else 0
    attempt = Attempt(mutant.family, mutant.law, mutant.name, killed, str(result.verdict), size)
    record_property("attempt", dataclasses.asdict(attempt))
    assert not result.as_declared, f"{mutant.name} passes {law.name} with {result.verdict} in {result.cases} cases"
    assert not result.vacuous, f"{mutant.name} is not caught by {law.name}: {result.vacuous}"
    if result.verdict is Verdict.CRASHES:
        broken = own_errors(mutant, lambda it: explorer(mutant.profile, place(law)).hold(law, it, mutant.original))
        assert not broken, f"{mutant.name} is not a fault that runs: {broken}"
    assert result.program is not None
    assert size <= SMALL, f"{mutant.name} is shown by {size} operations:\n{result.program.source}"


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.12 and earlier free such a graph without recursion")
@pytest.mark.parametrize("mutant", FATAL, ids=lambda mutant: f"{mutant.law}: {mutant.name}")
def test_its_law_ends_the_process_of_a_mutant(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    judging = f"from {__name__} import hold; hold({mutant.name!r})"
    ended = subprocess.run([sys.executable, "-c", judging], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    killed = ended.returncode == -signal.SIGSEGV
    attempt = Attempt(mutant.family, mutant.law, mutant.name, killed, str(Verdict.CRASHES), 0)
    record_property("attempt", dataclasses.asdict(attempt))
    assert killed, f"{mutant.name} passes {mutant.law}: its process ended with {ended.returncode}, {ended.stderr}"


@pytest.mark.parametrize("mutant", NOT_JUDGED_OTHERWISE, ids=lambda mutant: f"{mutant.law}: without a fault")
def test_the_implementation_without_the_fault_keeps_the_law(mutant: Mutant) -> None:
    law = LAWS[mutant.law]
    result = explorer(mutant.profile, place(law)).hold(law, mutant.original, mutant.original)
    assert result.as_declared, f"{result.verdict}: {result.vacuous or result.detail}"
    lacks = law.needs - mutant.original.capabilities  # what the installed release of torch has not
    assert result.verdict is (Verdict.REFUSES if lacks else Verdict.AGREES)


def test_every_law_has_a_mutant_unless_nothing_of_ours_can_break_it() -> None:
    assert LAWS.keys() - {mutant.law for mutant in mutants()} == UNBREAKABLE.keys()
    assert all(UNBREAKABLE.values())


def test_every_family_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.family for mutant in mutants())
    assert {law.family: counts[law.family] for law in LAWS.values() if counts[law.family] < 2} == {}


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in mutants()}) == len(mutants())


def test_modules_come_after_those_that_they_import() -> None:
    found = list(modules("offload"))
    assert found.index("impls.offload.slicing") < found.index("impls.offload.model")
    assert (
        found.index("impls.offload.transfers")
        < found.index("impls.offload.loaded_copies")
        < found.index("impls.offload.slice_run")
    )


def test_modules_of_another_implementation_are_shared() -> None:
    assert modules("nested")["impls.nested.region"]
    assert modules("offload")["impls.offload"]
    assert not modules("offload")["impls.nested"]
    assert not modules("nested")["impls.implementation"]


@pytest.mark.parametrize("field", ["name", "family", "law", "part", "what"])
def test_an_empty_field_is_refused(field: str) -> None:
    empty: Any = {field: ""}
    with pytest.raises(ValueError, match=f"{field} is empty"):
        replace(mutants()[0], **empty)


def changed(change: Callable[[Copy], None]) -> Any:
    return mutant("nested.region", "gradients", "core_programs_equal_plain")(change).implementation


def test_a_seam_is_replaced_in_the_copy_alone_and_wherever_it_was_imported() -> None:
    def says_so(copy: Copy) -> None:
        """It says so."""
        copy.wrap("nested.user_hooks", "push_hooks_of", lambda there: lambda *args: there(*args))

    made = changed(says_so)
    assert (made.name, made.summary) == ("says-so", "nested, but: It says so.")
    parts = [made.checkpoint.__globals__["push_hooks_of"], impls.get("nested").checkpoint.__globals__["push_hooks_of"]]
    assert [part.__name__ for part in parts] == ["<lambda>", "push_hooks_of"]


@pytest.mark.parametrize(
    ("part", "path", "error", "told"),
    [
        ("nested.region", "Region.no_such", AttributeError, "no_such"),
        ("nested.region", "no_such", AttributeError, "no_such"),
        ("nested.region", "Region", ValueError, "nested.region: Region is replaced by itself"),
        ("state.modes", "Modes", KeyError, "state.modes is not copied for this mutant"),
    ],
)
def test_what_is_no_seam_is_an_error(part: str, path: str, error: type[Exception], told: str) -> None:
    def nothing(copy: Copy) -> None:
        """Nothing is wrong."""
        copy.wrap(part, path, lambda there: there)

    with pytest.raises(error, match=told):
        changed(nothing)


def fails_at_last(copy: Copy) -> None:
    """An error that passes through ``finally`` is still one of the mutant's own."""

    def unpack(there: Any, self: Any, slot: Any) -> Any:
        try:
            return self.nowhere
        finally:
            there(self, slot)

    copy.call_instead("nested.region", "Region.unpack", unpack)


@pytest.mark.parametrize(
    ("change", "own"),
    [
        (lambda copy: copy.change_arguments("nested.region", "Region.unpack", lambda given: given["nowhere"]), ["KeyError"]),
        (lambda copy: copy.call_instead("nested.region", "Region.unpack", lambda there, self: there(self)), ["TypeError"]),
        (lambda copy: copy.raise_instead("nested.region", "Region.unpack", KeyError), []),
        (fails_at_last, ["AttributeError"]),
        (lambda copy: copy.set_before("nested.region", "Region.recompute", inputs=lambda _: None), []),
    ],
)
def test_an_error_of_a_mutants_own_code_is_told_from_its_fault(change: Callable[[Copy], None], own: list[str]) -> None:
    law = LAWS["core_programs_equal_plain"]
    faulty = Mutant("faulty", law.family, law.name, "nested.region", change, "It fails.")
    found = own_errors(faulty, lambda it: explorer("quick").hold(law, it, faulty.original))
    assert [error.split(":")[0] for error in found] == own


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"part is 'other'; it must be one of .*, state\.modes, .*, graph\.edges, .*, offload\.slicing"
    ):
        replace(mutants()[0], part="other")


@pytest.mark.parametrize("part", ["nested.api", "graph.hooks", "offload.model"])
def test_a_mutant_has_modules_of_its_own(part: str) -> None:
    mutant = next(mutant for mutant in mutants() if mutant.part == part)
    made, real = mutant.implementation.subject, mutant.original.subject
    assert made is not real
    if part == "nested.api":
        assert made.__globals__["Region"] is not real.__globals__["Region"]
    else:
        assert made.__name__.startswith("reprise_mutant_") or made.__module__.startswith("reprise_mutant_")


def test_a_fault_in_cpp_begins_a_function_of_that_name() -> None:
    source = "int one() { return 1; }\nint two(int x) {  // doubled\n  if (one(x)) {\n  }\n  return 2 * x;\n}\n"
    assert "// doubled\nx = 0;\n" in begin_with(source, "two", "x = 0;")
    for name in ("one", "three"):
        with pytest.raises(ValueError, match=f"'{name}', which is defined 0 times"):
            begin_with(source, name, "x = 0;")
