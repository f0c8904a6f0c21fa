"""Private names of torch that ``reprise check`` uses: a release without one is refused before a model runs."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import impls
from reprise.model_check.regions import _with_replaceable_code
from tests.unit.shared.test_torch_private import _private_names

ROOT = Path(impls.__file__).parents[1]
IMPORTED = "torch.utils._pytree.", "torch.utils._python_dispatch.TorchDispatchMode"  # with their module, at its beginning
OPERATORS = "torch.ops."


def test_one_module_of_reprise_alone_names_what_is_private_in_torch() -> None:
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "reprise").rglob("*.py")}
    found = {
        path: [one for one in _private_names(text) if not one.startswith((*IMPORTED, OPERATORS))]
        for path, text in sources.items()
    }
    assert [path for path, names in found.items() if names] == ["reprise/torch_private.py"]


@pytest.mark.parametrize("name", ["_get_mkldnn_enabled", "_current_graph_task_id"])
def test_a_release_without_a_name_is_no_failure_of_the_model(name: str) -> None:
    code = (
        f"import torch; vars(torch._C).pop({name!r}); from reprise.model_check.command import main; exit(main(['json:loads']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 3
    assert f"lacks a private name that {'impls' if name == '_current_graph_task_id' else 'reprise check'} uses: " in ran.stderr
    assert name in ran.stderr
    assert "the model fails" not in ran.stderr


def test_a_checkpoint_whose_code_cannot_be_replaced_is_no_failure_of_the_model() -> None:
    def around(function: object) -> object:
        return lambda: function

    with pytest.raises(ImportError, match=r"of torch \S+ cannot be redirected: it is a closure"):
        _with_replaceable_code(around(1))


def test_a_partial_that_a_user_has_put_in_the_place_of_pytorchs_checkpoint_is_looked_through() -> None:
    replaced = functools.partial(functools.partial(checkpoint, use_reentrant=False), debug=True)
    assert _with_replaceable_code(replaced) is _with_replaceable_code(checkpoint)


def test_what_is_no_function_is_told_as_such() -> None:
    with pytest.raises(ImportError, match=r"cannot be redirected: it is of type Linear\. If it was replaced, import"):
        _with_replaceable_code(torch.nn.Linear(1, 1))
