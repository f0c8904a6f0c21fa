"""Faults of the nested checkpoint that laws about nested tensors must catch."""

from __future__ import annotations

from conformance.mutants.faults.checkpoint.seams import compare_versions_alone_if
from conformance.mutants.mutant import Copy, mutant


@mutant("tensors.versions", "gradients", "nested_tensors")
def asks_nested_tensors_for_a_shape(copy: Copy) -> None:
    """Metadata of a nested tensor are asked for as those of any other."""
    copy.replace("tensors.versions", "any_tensor_metadata", copy["tensors.versions"].tensor_metadata)


@mutant("nested.recomputation", "gradients", "jagged_tensors_with_offsets_of_their_own")
def takes_ragged_sizes_for_alike(copy: Copy) -> None:
    """Of nested tensors the versions alone are compared."""
    compare_versions_alone_if(copy, lambda run, index, tensor: tensor.is_nested)
