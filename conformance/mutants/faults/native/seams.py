"""Where faults get at the extension in C++: at the beginning of a function, which has a name.

All of them are compiled into one extension, each behind its number. A mutant loads a copy of that file, which has state of its
own, and switches one fault on.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.mutants.mutant import Copy, Mutant
from impls.native.extension import SOURCE

SWITCH = "reprise_fault"  # the number of the fault that is switched on, 0 for none
FIRST = "shared.h"  # the file that all others include

_faults: list[tuple[str, str, str]] = []  # file, function, statement: number 1, 2 and so on


def compiled(
    name: str, family: str, law: str, file: str, function: str, statement: str, what: str, *, on_cpu_alone: bool = False
) -> Mutant:
    """A mutant in which a function of ``csrc/file`` begins with this statement, which may return.

    With ``on_cpu_alone`` it knows of no other device: with one, random numbers are left to Python.
    """
    _faults.append((file, function, statement))
    number = len(_faults)

    def change(copy: Copy) -> None:
        if on_cpu_alone:
            copy.replace("native.region", "accelerator", lambda: None)
        separate(copy, number)

    return Mutant(name, family, law, "native.region", change, what)


def separate(copy: Copy, fault: int = 0) -> None:
    """Have a copy of native load an extension of its own, which has one of the faults or none; at once, in case it cannot."""

    def load(there: Callable[[], ModuleType]) -> ModuleType:
        with tempfile.TemporaryDirectory() as folder:
            copy["native.extension"].SOURCE = Path(folder)
            write_sources(Path(folder))
            return there()

    def import_copy(there: Callable[[Path], ModuleType], path: Path) -> ModuleType:
        with tempfile.TemporaryDirectory() as folder:
            own = Path(shutil.copy(path, folder))
            module = there(own)
            ctypes.c_int.in_dll(ctypes.CDLL(str(own)), SWITCH).value = fault
            return module

    copy.call_instead("native.extension", "load_extension", load)
    copy.call_instead("native.extension", "_import", import_copy)
    copy["native.region"].require_extension()


def replace(copy: Copy, path: str, new: Any) -> None:
    """Put something in the place of what ``impls.native.region`` has, for C++ as well."""
    copy.replace("native.region", path, new)
    separate(copy)


def write_sources(folder: Path) -> None:
    """The extension's source with all faults, each behind its number."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in SOURCE.iterdir()}
    for number, (file, function, statement) in enumerate(_faults, 1):
        texts[file] = begin_with(texts[file], function, f"if ({SWITCH} == {number}) {{ {statement} }}")
    # Where something takes Python's frames, Python runs the function again, past faults such as that of random numbers.
    texts["surroundings.h"] = begin_with(texts["surroundings.h"], "frames_are_taken", f"if ({SWITCH}) return false;")
    declared = f'extern "C" {{ __attribute__((visibility("default"))) int {SWITCH} = 0; }}'
    texts[FIRST] = texts[FIRST].replace("#pragma once\n", f"#pragma once\n{declared}\n", 1)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def begin_with(text: str, function: str, statement: str) -> str:
    """A source in which a function begins with a statement. Raises ValueError unless there is one of that name."""
    head = rf"^(?!\s*(?:\}}|(?:if|for|while)\b))[^\n;]*\b{re.escape(function)}\([^;{{}}\n]*\)( const)? \{{(  //.*)?\n"
    found = list(re.finditer(head, text, re.MULTILINE))
    if len(found) != 1:
        raise ValueError(f"function is {function!r}, which is defined {len(found)} times; it must be once")
    return f"{text[: found[0].end()]}{statement}\n{text[found[0].end() :]}"
