"""How native builds its extension, and what it says where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
import torch

from impls.native import NativeUnavailableError, api, checkpoint, extension

NEEDS_COMPILER = pytest.mark.skipif(not (shutil.which("c++") and shutil.which("ninja")), reason="there is no c++ or no ninja")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    monkeypatch.setattr(extension, "_failure", "")


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeUnavailableError, match=r"no C\+\+ compiler 'no-such-compiler'. Install g\+\+"):
        extension.load_extension()


def test_a_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    with pytest.raises(NativeUnavailableError, match="free-threaded"):
        extension.load_extension()


@NEEDS_COMPILER
def test_a_failed_build_is_logged_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Path] = []

    def fail(folder: Path) -> None:
        tries.append(folder)
        (folder / f"{extension.NAME}.so").touch()
        raise RuntimeError("expected ';' before '}'")

    monkeypatch.setattr(extension, "_compile", fail)
    for _ in range(2):
        with pytest.raises(NativeUnavailableError, match="cannot be built"):
            extension.load_extension()
    assert len(tries) == 1
    assert [path.read_text() for path in tmp_path.rglob("*.log")] == ["expected ';' before '}'"]
    assert not list(tmp_path.rglob("*.so"))


@NEEDS_COMPILER
def test_what_is_in_the_cache_and_no_extension_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_compile", lambda folder: (folder / f"{extension.NAME}.so").write_bytes(b"?"))
    with pytest.raises(NativeUnavailableError, match=r"cannot be loaded.*Delete it"):
        extension.load_extension()


@NEEDS_COMPILER
def test_one_builds_while_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, begun, go_on = tmp_path / "key" / f"{extension.NAME}.so", threading.Event(), threading.Event()
    builds: list[str] = []

    def compile_slowly(folder: Path) -> None:
        builds.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(60)
        (folder / path.name).touch()

    monkeypatch.setattr(extension, "_compile", compile_slowly)
    monkeypatch.setattr(extension, "_report", lambda text: go_on.set() if text.startswith("waiting") else None)
    first = threading.Thread(target=extension._build, args=(path,), name="first")
    first.start()
    assert begun.wait(60)
    extension._build(path)
    first.join()
    assert (builds, path.exists()) == (["first"], True)


@NEEDS_COMPILER
def test_what_the_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-c++"
    told = "module.cpp:1:10: fatal error: Python.h: No such file or directory"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-c*) echo "{told}" >&2; exit 1;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailableError, match=r"fatal error: Python\.h: No such file .*Install g\+\+ and the headers"):
        extension.load_extension()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    for name in ("REPRISE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NativeUnavailableError, match=r"no folder for its cache: .* Set REPRISE_CACHE to one"):
        extension.load_extension()


TINY = """#include <Python.h>
static PyModuleDef definition{PyModuleDef_HEAD_INIT, "reprise_native"};
PyMODINIT_FUNC PyInit_reprise_native() { return PyModule_Create(&definition); }
"""
LOAD = "import sys, pathlib; from impls.native import extension; extension.SOURCE = pathlib.Path(sys.argv[1]);"
LOAD += "print(extension.load_extension().__file__)"


def _process(source: Path, compiler: Path) -> subprocess.Popen[str]:
    """A process that loads an extension from this source."""
    command = [sys.executable, "-c", LOAD, str(source)]
    environment = {**os.environ, "CXX": str(compiler)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@NEEDS_COMPILER
def test_a_second_process_waits_for_the_one_that_builds(tmp_path: Path) -> None:
    source, go_on, compiler = tmp_path / "csrc", tmp_path / "go-on", tmp_path / "slow-c++"
    source.mkdir()
    (source / "module.cpp").write_text(TINY)
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-c*) while [ ! -e {go_on} ]; do sleep 0.05; done;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    first = _process(source, compiler)
    assert first.stderr is not None
    told = first.stderr.read(len("building"))
    second = _process(source, compiler)
    assert second.stderr is not None
    waiting = second.stderr.readline()
    go_on.touch()
    loaded = [one.communicate(timeout=300)[0] for one in (first, second)]
    third = _process(source, compiler).communicate(timeout=300)
    assert (told, waiting) == ("building", "waiting for another process that builds impls.native ... \n")
    assert loaded[0] == loaded[1] == third[0]
    assert Path(loaded[0].strip()).is_relative_to(tmp_path)
    assert third[1] == ""


@NEEDS_COMPILER
def test_another_source_compiler_or_torch_is_another_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "region.h").write_text("int one;")
    monkeypatch.setattr(extension, "SOURCE", tmp_path)
    before = extension._key(["c++"])
    assert extension._key(["c++"]) == before
    assert extension._key(["c++", "-O0"]) != before
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "2.12.0")
        assert extension._key(["c++"]) != before
    (tmp_path / "region.h").write_text("int other;")
    assert extension._key(["c++"]) != before


def test_without_grad_nothing_has_to_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NativeUnavailableError("nothing to build")

    monkeypatch.setattr(api, "require_extension", fail)
    with torch.no_grad():
        assert checkpoint(torch.sin, torch.ones(2)).equal(torch.ones(2).sin())
    with pytest.raises(NativeUnavailableError, match="nothing to build"):
        checkpoint(torch.sin, torch.ones(2))
