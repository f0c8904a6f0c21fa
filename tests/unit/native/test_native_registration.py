"""What is built in, but has to be compiled: it is found where it can be built, and else said to be not available."""

from __future__ import annotations

from pathlib import Path

import pytest

import impls
from conformance.provenance.fingerprints import Sources
from conformance.runs.selection import left_out
from impls import native
from impls.native import extension


@pytest.mark.parametrize("name", impls.COMPILED)
def test_it_has_a_name_of_its_own_and_a_module_that_declares_it(name: str) -> None:
    assert name not in {*impls.names(), *impls.PEERS}
    assert impls.module_of(name) == impls.COMPILED[name][1]
    assert native.IMPLEMENTATION.kind == impls.COMPILED[name][0]


def test_it_is_found_where_it_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load_extension", lambda: None)
    assert impls.find("native") is native.IMPLEMENTATION


@pytest.fixture
def _no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(extension, "_failure", "")


@pytest.mark.usefixtures("_no_compiler")
def test_it_is_not_available_without_a_compiler() -> None:
    with pytest.raises(ValueError, match=r"native is not available: there is no C\+\+ compiler .* Install g\+\+"):
        impls.find("native")


@pytest.mark.usefixtures("_no_compiler")
def test_a_run_of_what_is_built_in_leaves_it_out_and_says_why() -> None:
    told = left_out(peers=False, impl=[], device="cpu")
    assert list(told) == ["native"]
    assert "Install g++" in told["native"]
    assert left_out(peers=False, impl=["nested"], device="cpu") == {}


def test_its_fingerprint_has_the_source_in_cpp(tmp_path: Path) -> None:
    for package in ("impls/native/csrc", "conformance", "benches", "reprise"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / "impls" / "native" / "api.py").write_text("")
    source = tmp_path / "impls" / "native" / "csrc" / "region.h"
    found = []
    for text in ("int one;", "int other;"):
        source.write_text(text)
        found.append(Sources(tmp_path).compiled("impls.native.api"))
    assert [len(each) for each in found] == [1, 1]
    assert found[0] != found[1]
    assert Sources().compiled("impls.nested.api") == []
