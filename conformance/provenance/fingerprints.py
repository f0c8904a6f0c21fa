"""Fingerprints of code: a hash over the syntax trees of definitions and of all that they refer to, however far away.

Comments, docstrings and formatting do not count, nor does the version of Python that reads the code. A definition refers to the
names in its text (including annotations, which say whose methods are called), to attributes of modules, to imports inside it,
and to imports in the text of programs. A law also refers to laws that it names. What is in ``SEPARATE`` is left out, and in
``Sources.undeclared`` the known failures that implementations declare are left out, too.

A root is a module (``"impls.nested"``), a definition (``"conformance.judging.explorer:Explorer"``) or an entry of a dict
(``"benches.models.workloads:KINDS[chain]"``).
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from conformance.provenance.syntax_trees import Module, Target, canonical, chains, entries, evaluated, imports, parsed
from conformance.rows.results_file import ROOT

PACKAGES = "impls", "conformance", "benches", "reprise"
LAWS, RANKED_LAWS = "conformance.laws", "conformance.distributed.laws"
# Code that describes a measurement or renders it, what a law means to readers, and code that finds an implementation or what is
# declared of it, which have fingerprints of their own.
SEPARATE = frozenset(
    {
        "conformance.distributed.explorer:RankedExplorer.script",
        "conformance.judging.result:Result.script",
        "conformance.rows.for_readers:for_readers",
        "conformance.rows.results_file:header",
        "conformance.reproducers.script:hanging",
        "impls.distributed_limits:declared",
        "impls.implementation:Implementation.importing",
        "impls:find",
    }
)
DIGITS = 12
COMPILED = "csrc"  # the folder of what is in C++, whose text is hashed as it is
ALL, EFFECTS = "*", ""  # all of a module; what importing it does besides binding names
_IMPORT = re.compile(r"^[ \t]*((?:from [\w.]+ )?import \w.*)$", re.MULTILINE)
_ENTRY = re.compile(r"(?P<name>\w+)\[(?P<key>.+)\]")

Item = tuple[str, str]  # a module, and a name in it, ALL or EFFECTS


class Sources:
    """The code of a checkout at the time when this was made. Nothing of it is imported."""

    def __init__(self, root: Path = ROOT) -> None:
        paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self._texts = {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}
        compiled = sorted(path for package in PACKAGES for path in (root / package).rglob(f"{COMPILED}/*"))
        self._compiled = {path.relative_to(root): path.read_text(encoding="utf-8") for path in compiled}
        self._paths = {_dotted(path): path for path in self._texts}
        self._ours = {one for name in self._paths for one in _with_packages(name)}  # also packages without a file
        self._whole: Sources | None = None  # if this is the same code without the known failures
        self._begin()

    def _begin(self) -> None:
        self._modules: dict[str, Module] = {}
        self._statements: dict[Item, list[ast.AST]] = {}
        self._references: dict[Item, frozenset[Item]] = {}
        self._hashes: dict[Item, str] = {}
        self._fingerprints: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
        self._declarations: dict[str, str] = {}
        self._holders: dict[tuple[str, str], list[str]] = {}

    @cached_property
    def undeclared(self) -> Sources:
        """The same code without the known failures that implementations declare: what they do, not what they declare."""
        other = copy.copy(self)
        other._whole = self
        other._begin()
        return other

    def declaration(self, module: str) -> str:
        """The fingerprint of only the known failures that a module declares; raises as ``fingerprint`` does."""
        if module not in self._declarations:
            rest = self.undeclared
            without = rest.closure([module])
            items = [one for one in self.closure([module]) if one not in without or self._hash(one) != rest._hash(one)]
            self._declarations[module] = self.hashed(items)
        return self._declarations[module]

    def differing(self, other: Sources) -> list[str]:
        """The files that are not the same in other sources."""
        ours, theirs = {**self._texts, **self._compiled}, {**other._texts, **other._compiled}
        return [path.as_posix() for path in sorted(ours.keys() | theirs.keys()) if ours.get(path) != theirs.get(path)]

    def compiled(self, module: str) -> list[str]:
        """Texts for ``fingerprint`` that represent the C++ source beside a module: each file with its hash."""
        folder = Path(*module.split(".")).with_name(COMPILED)
        return [f"{path.as_posix()} {_hashed(text)}" for path, text in self._compiled.items() if path.parent == folder]

    def holding(self, package: str, name: str) -> str:
        """The module below a package that defines a name. Raises ValueError when none does, or more than one."""
        inside = self._holding(package, name)
        if len(inside) != 1:
            raise ValueError(f"{len(inside)} modules of {package} define {name}; one must")
        return inside[0]

    def _holding(self, package: str, name: str) -> list[str]:
        if (package, name) not in self._holders:
            inside = [one for one in self._paths if one.startswith(f"{package}.")]
            self._holders[package, name] = [one for one in inside if name in self._module(one).definitions]
        return self._holders[package, name]

    def fingerprint(self, roots: Iterable[str], also: Iterable[str] = ()) -> str:
        """The fingerprint of these roots, and of texts that represent other code, such as ``"fairscale==0.4.13"``.

        Raises ValueError for a root that does not exist, and for a file that is not Python.
        """
        key = tuple(roots), tuple(also)
        if key not in self._fingerprints:
            self._fingerprints[key] = self.hashed(self.closure(key[0]), key[1])
        return self._fingerprints[key]

    def hashed(self, items: Iterable[Item], also: Iterable[str] = ()) -> str:
        """The hash of what ``closure`` found, and of some texts."""
        lines = [f"{module}:{name} {self._hash((module, name))}" for module, name in sorted(items)]
        return _hashed("\n".join([*lines, *sorted(also)]))[:DIGITS]

    def closure(self, roots: Iterable[str]) -> frozenset[Item]:
        """All that these roots refer to, themselves included; raises as ``fingerprint`` does."""
        found: set[Item] = set()
        pending = [*self.items(roots)]
        while pending:
            item = pending.pop()
            if item not in found and ":".join(item) not in SEPARATE:
                found.add(item)
                pending += self._referred(item)
        return frozenset(found)

    def has(self, root: str) -> bool:
        """Whether a definition, or an entry of a dict, exists. Raises ValueError for a module that does not."""
        module, _, name = root.partition(":")
        return bool(self._of((module, name)))

    def items(self, roots: Iterable[str]) -> frozenset[Item]:
        """These roots alone; raises as ``fingerprint`` does."""
        return frozenset(map(self._root, roots))

    def _root(self, root: str) -> Item:
        module, colon, name = root.partition(":")
        item = (module, name) if colon else (module, ALL)
        if colon and not self._of(item):
            raise ValueError(f"there is no {name} in {module}")
        self._module(module)
        return item

    def _module(self, name: str) -> Module:
        if name not in self._ours:
            raise ValueError(f"there is no module {name}")
        if self._whole and self._declares_nothing(name):
            return self._whole._module(name)
        if name not in self._modules:
            path = self._paths.get(name)
            self._modules[name] = Module(name, True) if path is None else self._parsed(name, path)
        return self._modules[name]

    def _declares_nothing(self, name: str) -> bool:
        """Whether a module is the same without known failures: nothing in it makes an implementation."""
        path = self._paths.get(name)
        return path is None or "Implementation(" not in self._texts[path]

    def _parsed(self, name: str, path: Path) -> Module:
        try:
            package = path.name == "__init__.py"
            return parsed(name, self._texts[path], is_package=package, without=SEPARATE, declares=self._whole is None)
        except SyntaxError as error:
            raise ValueError(f"{path} is no Python: {error}") from error

    def _of(self, item: Item) -> list[ast.AST]:
        """The syntax trees that an item stands for."""
        if item not in self._statements:
            module, name = self._module(item[0]), item[1]
            if name in (ALL, EFFECTS):
                found = module.effects
            elif entry := _ENTRY.fullmatch(name):
                found = [value for one in module.definitions.get(entry["name"], ()) for value in entries(one, entry["key"])]
            else:
                found = [*([module.imports[name][1]] if name in module.imports else []), *module.definitions.get(name, ())]
            self._statements[item] = found
        return self._statements[item]

    def _hash(self, item: Item) -> str:
        if self._whole and self._declares_nothing(item[0]):
            return self._whole._hash(item)
        if item not in self._hashes:
            self._hashes[item] = _hashed(canonical(self._of(item)))
        return self._hashes[item]

    def _referred(self, item: Item) -> frozenset[Item]:
        if item not in self._references:
            self._references[item] = frozenset(self._found(item))
        return self._references[item]

    def _found(self, item: Item) -> Iterator[Item]:
        module = self._module(item[0])
        yield from ((one, EFFECTS) for one in _with_packages(module.name))  # which importing it imports
        if item[1] == ALL:
            yield from ((module.name, name) for name in module.definitions)
            for target, _ in module.imports.values():
                yield from self._resolved(target)
        for statement in self._of(item):
            if not isinstance(statement, ast.Import | ast.ImportFrom):  # an import from another project is an item itself
                yield from self._in(module, statement)

    def _in(self, module: Module, tree: ast.AST) -> Iterator[Item]:
        """What a statement of a module refers to."""
        nodes = list(evaluated(tree))
        inside = [target for one in imports(nodes) for target in module.targets(one)]
        for _, target in inside:
            yield from self._resolved(target) if target.names else ()
        local = dict(inside)
        for first, *rest in chains(nodes):
            if first in local:
                yield from self._resolved(local[first], rest)
            if first in module.imports:
                target = module.imports[first][0]
                yield from self._resolved(target, rest) if target.module in self._ours else [(module.name, first)]
            if first in module.definitions:
                yield module.name, first
        for text in (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)):
            if "importlib" in module.imports and "." in text and text in self._paths:  # "reprise" may be a folder's name, too
                yield text, ALL
            if module.name.startswith(f"{LAWS}."):  # a law may mix the programs of others, which it names
                yield from ((one, f"test_{text}") for one in self._holding(LAWS, f"test_{text}"))
            yield from self._imported_by(text)

    def _imported_by(self, text: str) -> Iterator[Item]:
        """What the text of a program imports."""
        for found in _IMPORT.finditer(text):
            try:
                statements = ast.parse(found[1]).body
            except SyntaxError:
                continue
            for _, target in (one for statement in imports(statements) for one in Module("", False).targets(statement)):
                yield from self._resolved(target)

    def _resolved(self, target: Target, more: Iterable[str] = ()) -> Iterator[Item]:
        """Where a name of a module, then a name of that one, and so on, is defined; nothing if the module is not ours."""
        names = [*target.names, *more]
        if target.module not in self._ours:
            return
        if not names:
            yield target.module, ALL
            return
        there, first = self._module(target.module), names[0]
        inner = f"{target.module}.{first}"
        if first in there.definitions:
            yield there.name, first
        elif first in there.imports:
            source = there.imports[first][0]
            yield from self._resolved(source, names[1:]) if source.module in self._ours else [(there.name, first)]
        else:
            yield from self._resolved(Target(inner), names[1:]) if inner in self._ours else [(there.name, ALL)]


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _with_packages(module: str) -> list[str]:
    """The packages around a module, and itself."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
