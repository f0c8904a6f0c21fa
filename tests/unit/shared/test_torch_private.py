"""Private names of torch: in one module of ``impls`` alone, which knows them all."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess, run

import pytest

import impls
from impls import torch_private

ROOT = Path(impls.__file__).parents[1]
_BY_NAME = ("getattr", "hasattr", "setattr")
_NOT_OF_TORCH = ("torch", "sys", "copyreg")  # what attribute chains start at that name no object of torch


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that imports bind, each with what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name.partition(".")[0], one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _chain(node: ast.expr) -> list[str]:
    """The names of ``a.b.c``; an empty first one where it starts at something else than a name."""
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def _chains(tree: ast.AST) -> Iterator[list[str]]:
    """Each attribute with what it is an attribute of, by dots or asked for by ``getattr`` and the like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield _chain(node)
        elif isinstance(node, ast.Call) and _chain(node.func)[0] in _BY_NAME:
            owner, name = node.args[:2]
            if isinstance(name, ast.Constant):
                yield [*_chain(owner), str(name.value)]


def _private_names(source: str) -> set[str]:
    """The private names of torch that a module's text imports, or reaches from what it imports."""
    tree = ast.parse(source)
    bound = {name: whole.split(".")[: None if name != "torch" else 1] for name, whole in _imports(tree)}
    found = [whole.split(".") for _, whole in _imports(tree)]
    found += [[*bound.get(root, [root]), *names] for root, *names in _chains(tree)]
    return {".".join(one) for one in found if one[0] == "torch" and any(map(_is_private, one))}


def _own_names(tree: ast.AST) -> Iterator[str]:
    """What a module defines: functions, variables, and attributes of its own objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _chain(node)[0] == "self":
            yield node.attr


def _names_in_strings(tree: ast.AST) -> Iterator[str]:
    """What may be the names of attributes, as in ``vars(module)["_buffers"]``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def _modules() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "impls").rglob("*.py")}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._set_grad_enabled(True)",
        "from torch.utils import _pytree",
        "import torch.utils._pytree",
        "from torch.utils._pytree import tree_leaves",
        "from torch import nn\nnn.modules.batchnorm._BatchNorm",
        "import torch as t\nt.autograd.Variable._execution_engine",
        "import torch\ngetattr(torch, '_neg_view', None)",
    ],
)
def test_a_private_name_is_found_however_it_is_reached(source: str) -> None:
    assert _private_names(source)


def test_public_names_and_private_ones_of_others_are_no_private_names_of_torch() -> None:
    assert not _private_names("import torch, sys\ntorch.ones(2).__class__\nsys._current_frames()\nself._version")


def test_one_module_alone_names_what_is_private_in_torch() -> None:
    assert {path for path, source in _modules().items() if _private_names(source)} == {"impls/torch_private.py"}


def test_private_attributes_of_objects_are_listed_and_the_list_has_no_others() -> None:
    trees = {path: ast.parse(source) for path, source in _modules().items() if not path.startswith("impls/peers/")}
    chains = [chain for tree in trees.values() for chain in _chains(tree)]
    used = {chain[-1] for chain in chains if _is_private(chain[-1]) and chain[0] not in _NOT_OF_TORCH}
    strings = [name for path, tree in trees.items() if path != "impls/torch_private.py" for name in _names_in_strings(tree)]
    used |= set(filter(_is_private, strings))
    own = {"_", "_fields", *(name for tree in trees.values() for name in _own_names(tree))}  # "_fields" is of named tuples
    assert used - own <= torch_private.ATTRIBUTES.keys() <= used | own


def test_every_name_is_used() -> None:
    bound = {name for name, _ in _imports(ast.parse(_modules()["impls/torch_private.py"]))}
    names = {name for name in vars(torch_private) if name in bound or callable(getattr(torch_private, name))}
    used = set()
    for path, source in _modules().items():
        tree = ast.parse(source)
        used |= {whole.rpartition(".")[2] for _, whole in _imports(tree) if whole.startswith("impls.torch_private.")}
        used |= {chain[1] for chain in _chains(tree) if chain[0] == "torch_private"}
        used |= {node.id for node in ast.walk(tree) if path.endswith("torch_private.py") and isinstance(node, ast.Name)}
    assert names - used <= {"annotations"}


def _run_without(name: str, code: str) -> CompletedProcess[str]:
    code = f"import torch; vars(torch._C).pop({name!r}, None); {code}"
    return run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_release_without_a_name_is_refused_by_name() -> None:
    done = _run_without("_has_storage", "import impls.nested")
    assert "lacks a private name that impls uses: module 'torch._C' has no attribute '_has_storage'" in done.stderr
    assert f"Install a release of {torch_private.RELEASES}" in done.stderr


def test_a_release_that_cannot_forget_an_object_of_a_thread_leaves_none() -> None:
    done = _run_without(
        "_remove_obj_from_tls",
        "from impls.state.restoration import Restoration, current_restoration\n"
        "with Restoration(None, []): assert current_restoration() is not None\n"
        "assert current_restoration() is None",
    )
    assert done.returncode == 0, done.stderr


def test_an_object_of_a_thread_is_kept_and_let_go() -> None:
    value = object()
    before = sys.getrefcount(value)
    torch_private.set_thread_object("test", value)
    assert sys.getrefcount(value) > before
    assert torch_private.get_thread_object("test") is value
    torch_private.remove_thread_object("test")
    assert sys.getrefcount(value) == before
