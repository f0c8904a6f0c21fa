"""Faults of the nested checkpoint that laws of the family operators must catch."""

from __future__ import annotations

import torch

from conformance.mutants.faults.checkpoint.seams import change_recomputed, change_restored
from conformance.mutants.mutant import Copy, mutant


@mutant("nested.inputs", "operators", "operators_that_a_region_begins_with")
def mixes_up_arguments_after_the_third(copy: Copy) -> None:
    """A recomputation gets the arguments after the third in the opposite order."""
    change_restored(copy, lambda args, kwargs: ((*args[:3], *args[:2:-1]), kwargs))


@mutant("nested.recomputation", "operators", "operators_that_a_region_ends_with")
def stops_inside_an_operator(copy: Copy) -> None:
    """A recomputation ends at the last tensor that is saved, also if its operator writes it after that."""
    copy.replace("nested.recomputation", "_find_late_write", lambda slots, last: -1)


@mutant("nested.recomputation", "operators", "operators_that_a_region_ends_with")
def brings_no_tensors_without_dimensions(copy: Copy) -> None:
    """A recomputed tensor without dimensions comes back as one."""
    change_recomputed(copy, lambda tensor: tensor if tensor.dim() else torch.ones_like(tensor))


@mutant("nested.inputs", "operators", "operators_with_all_their_arguments")
def repeats_keyword_arguments_by_position(copy: Copy) -> None:
    """A recomputation gets keyword arguments by position."""
    change_restored(copy, lambda args, kwargs: ((*args, *kwargs.values()), {}))


@mutant("nested.inputs", "operators", "operators_that_write_to_their_arguments")
def mixes_up_arguments_after_the_first(copy: Copy) -> None:
    """A recomputation gets the arguments after the first in the opposite order."""
    change_restored(copy, lambda args, kwargs: ((*args[:1], *args[:0:-1]), kwargs))
