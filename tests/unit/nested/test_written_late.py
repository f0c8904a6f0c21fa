"""Which operators write what they have saved: what ``impls.nested.recomputation`` takes for granted of the installed torch."""

from __future__ import annotations

import re
from importlib import resources

FORMULAS = resources.files("torchgen") / "packaged" / "autograd" / "derivatives.yaml"  # which torch brings
STATISTICS = {"running_mean", "running_var"}  # which backward reads in evaluation, and forward writes in training


def saved_and_written() -> dict[str, set[str]]:
    """By operator, its arguments besides ``self`` that it writes and its backward reads."""
    found = {}
    for entry in FORMULAS.read_text().split("\n- name: ")[1:]:
        schema, _, formulas = entry.partition("\n")
        written = set(re.findall(r"Tensor\(\w!\)\?? (\w+)", schema)) - {"self"}
        formulas = "\n".join(line for line in formulas.splitlines() if not line.strip().startswith("#"))
        if read := {name for name in written if re.search(rf"\b{name}\b", formulas)}:
            found[schema.partition("(")[0]] = read
    return found


def test_noise_of_rrelu_alone_is_written_after_it_was_saved() -> None:
    others = {name: arguments for name, arguments in saved_and_written().items() if arguments != STATISTICS}
    assert others == {"rrelu_with_noise": {"noise"}, "rrelu_with_noise_": {"noise"}}
