"""PyTorch's database of operators: what is taken from it, of which category it is, and that to import it changes nothing."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from conformance.judging.explorer import Explorer
from conformance.judging.judge import plainly
from conformance.judging.law import PROFILES, all_laws
from conformance.laws import test_operators as operators
from conformance.programs import operator_database as database
from conformance.programs.operator_database import Category
from impls import get

LAWS = [law for law in all_laws().values() if law.family == "operators"]
RRELU = "nn.functional.rrelu"


def test_importing_it_changes_nothing_of_the_process() -> None:
    looked = """
        import os, random, sys, warnings
        import hypothesis, numpy, torch
        from conformance.programs import operator_database as database

        def looks():
            flags = torch.backends.flags_frozen(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
            states = torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()
            return flags, states, dict(os.environ), hypothesis.settings.get_current_profile_name(), list(warnings.filters)

        before = looks()
        assert database.operators()
        assert "expecttest" not in sys.modules
        assert looks() == before, (looks(), before)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(looked)], check=True)


@pytest.mark.parametrize(
    ("operator", "number", "category"),
    [
        (RRELU, 0, Category.DIFFERENTIABLE),
        ("nn.functional.instance_norm", 0, Category.WRITES),
        ("nn.functional.batch_norm", 0, Category.WRITES),
        ("normal.number_mean", 0, Category.CONSTANT),
    ],
)
def test_what_a_sample_is_for_a_law_is_seen_in_plain_runs(operator: str, number: int, category: Category) -> None:
    assert database.sample(operator, "float64", number).category is category


def test_a_sample_that_plain_refuses_is_known_as_such() -> None:
    assert Category.FAILS in {one.category for one in database.samples("linalg.eig", "float64")}


def test_samples_are_the_same_one_by_one_and_all_at_once() -> None:
    all_of_them = database.samples(RRELU, "float64")
    assert len(all_of_them) == database.count(RRELU, "float64") > 2
    assert [database.sample(RRELU, "float64", one.number) for one in all_of_them] == list(all_of_them)


def test_outputs_without_a_gradient_are_left_out() -> None:
    one = next(one for one in database.samples("sort", "float64") if one.category is Category.DIFFERENTIABLE)
    assert one.outputs == (0,)  # the indices have none


def test_operators_that_write_are_found() -> None:
    assert {"nn.functional.instance_norm", "nn.functional.batch_norm"} <= set(database.writing())
    assert len(database.writing()) < 10


@pytest.mark.parametrize("place", ["first", "last", "alone"])
def test_a_program_shows_its_arguments_and_proves_something(place: str) -> None:
    program = database.program(database.sample(RRELU, "float64", 0), place)
    assert "'training': 'True'" in program.source
    assert not plainly(program, "cpu").vacuous


def test_what_is_drawn_is_among_all_programs_which_an_exhaustive_profile_runs() -> None:
    def few() -> tuple[str, ...]:
        return RRELU, "nn.functional.glu"  # of which there are more samples than cases

    every = functools.partial(operators.every, "last", Category.DIFFERENTIABLE, few)
    drawing = functools.partial(operators.calls, "last", Category.DIFFERENTIABLE, few)
    law = replace(LAWS[0], programs=drawing, every=every)
    quick = PROFILES["quick"]
    drawn, all_of_them = (
        {program.source for program in Explorer("cpu", profile, 0).programs(law, get("nested"))}
        for profile in (quick, replace(quick, exhaustive=True))
    )
    assert drawn < all_of_them
    assert all_of_them == {program.source for program in every(get("nested"))}


def test_a_law_without_a_package_that_its_programs_import_is_not_judged() -> None:
    law = replace(LAWS[0], packages=("numpy", "no_such_package"))
    assert (LAWS[0].lacks("cpu"), law.lacks("cpu")) == ("", "the package no_such_package")
    assert LAWS[0].lacks("cuda") == "a device of type cpu"
