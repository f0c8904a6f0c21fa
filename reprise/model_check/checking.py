"""The check of a model: plain twice, then each implementation beside it."""

from __future__ import annotations

import gc
import statistics
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import impls
from impls import Implementation
from reprise.model_check.builder import ACCEPTED
from reprise.model_check.comparison import Plain, compare_runs, compare_tensors
from reprise.model_check.explain import Wrong, explain_divergence, explain_spread
from reprise.model_check.metering import Observations, measure
from reprise.model_check.report import Report, Result, Warned
from reprise.model_check.run import NoRegions, Run, Setting, run

DEFAULT = ("torch-nonreentrant", "nested")
ROUNDS = 3  # of the runs that are timed, plain and every implementation in turn
REFUSALS = RuntimeError, TypeError, ValueError, NotImplementedError
_AUTOGRAD = ("modified by an inplace operation", "checkpoint", "recomput", "saved_tensors")  # in its refusals, see _verdict


class PlainFails(ValueError):
    """The model fails without checkpointing, so there is nothing to compare with."""


def check(
    build: Callable[[], Any],
    *,
    impl: str | Implementation | Sequence[str | Implementation] = DEFAULT,
    regions: str | Sequence[str] = (),
    device: str | torch.device | None = None,
    steps: int = 2,
    explain: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Report:
    """Compare steps of a model whose regions are checkpointed with plain steps; see docs/checking-your-model.md.

    ``build()`` returns ``(model, loss)`` with ``loss(model)`` a scalar, or ``(model, example_inputs)``; it is called anew
    for each run. ``regions`` are globs of module names, besides the model's own calls of PyTorch's checkpoint.
    Raises TypeError and ValueError for what is not accepted and for a model that fails without checkpointing. Not checked:
    hangs, double backward, several processes, what ``torch.compile`` has compiled.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be 1 or more")
    chosen = [impl] if isinstance(impl, str | Implementation) else list(impl)
    found = [one if isinstance(one, Implementation) else impls.find(one) for one in chosen]
    if not found:
        raise ValueError("impl is empty; name one implementation at least")
    globs = (regions,) if isinstance(regions, str) else tuple(regions)
    setting = Setting(_anew(build), globs, _device(device), steps=steps)
    tell = progress or (lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run would repeat the model's
        return _Checked(setting, tell, explain).report(found)


def assert_equals_plain(
    build: Callable[[], Any],
    *,
    impl: str | Implementation | Sequence[str | Implementation] = DEFAULT,
    regions: str | Sequence[str] = (),
    device: str | torch.device | None = None,
    steps: int = 2,
) -> None:
    """Raise AssertionError with the report unless every implementation agrees with plain; arguments as in ``check``."""
    report = check(build, impl=impl, regions=regions, device=device, steps=steps)
    if not report.agrees:
        raise AssertionError(f"checkpointing changes the step\n{report}")


def _device(device: str | torch.device | None) -> torch.device | None:
    try:
        found = None if device is None else torch.device(device)
        if found is not None:
            torch.empty(0, device=found)
    except Exception as error:
        raise ValueError(f"device is {device!r}, and torch cannot use it here: {str(error).splitlines()[0]}") from error
    return found


def _anew(build: Callable[[], Any]) -> Callable[[], Any]:
    """``build``, which is refused when it returns the model of its last call again."""
    last: list[weakref.ref[Any]] = []

    def built() -> Any:
        made = build()
        model = made[0] if isinstance(made, tuple) and made else made
        if isinstance(model, nn.Module):
            if last and last.pop()() is model:
                raise TypeError(f"build() returned the same model again; {ACCEPTED}")
            last.append(weakref.ref(model))
        return made

    return built


@dataclass(frozen=True)
class _Checked:
    setting: Setting
    tell: Callable[[str], object]
    explain: bool

    def report(self, found: list[Implementation]) -> Report:
        self.tell("plain, twice")
        plain = Plain(*self._plain_runs())
        self.tell("plain, metered")
        costs, metered = measure(self.setting, None, Observations())
        explained = explain_spread(self.setting) if self.explain and not plain.spread.agrees else ()
        initial = compare_tensors(plain.run.initial, plain.other.initial)
        results = [self._result(one, plain, metered) for one in found]
        ratios = self._times(found, results)
        return Report(
            regions=tuple(one.name for one in plain.run.regions),
            spread=plain.spread,
            initial_values_differ=tuple(one.name for one in initial.differing),
            spread_explanation=explained,
            plain=costs,
            results=tuple(replace(one, time_ratio=ratio) for one, ratio in zip(results, ratios, strict=True)),
        )

    def _plain_runs(self) -> tuple[Run, Run]:
        try:
            runs = run(self.setting, None), run(self.setting, None)
        except (NoRegions, TypeError) as error:
            if isinstance(error, NoRegions) or _raised_in(error, Path(__file__).parent):
                raise
            raise PlainFails(f"the model fails without checkpointing: {_told(error)}") from error
        except Exception as error:
            if isinstance(error, ValueError) and _raised_in(error, Path(__file__).parent):
                raise
            raise PlainFails(f"the model fails without checkpointing: {_told(error)}") from error
        return runs

    def _result(self, one: Implementation, plain: Plain, metered_plain: Run) -> Result:
        self.tell(one.name)
        spread = None if plain.spread.agrees else plain.spread
        wrong = Wrong(plain.run, spread)
        try:
            seen = run(self.setting, one.checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
            told, verdict = _told(error), _verdict(error, one)
            error.__traceback__ = None  # its frames hold the model
            result = Result(one.name, verdict, error=told)
        else:
            compared = compare_runs(plain.run, seen, spread)
            result = Result(
                one.name,
                "agrees" if compared.agrees else "diverges",
                comparison=compared,
                calls=seen.calls,
                recomputations=seen.recomputations,
            )
        gc.collect()
        result = replace(result, **self._metered(one, metered_plain))
        if self.explain and result.verdict != "agrees":
            self.tell(f"{one.name}, explained")
            result = replace(result, explanation=explain_divergence(self.setting, one.checkpoint, wrong))
        return result

    def _metered(self, one: Implementation, plain: Run) -> dict[str, Any]:
        self.tell(f"{one.name}, metered")
        seen = Observations()
        try:
            costs, metered = measure(self.setting, one.checkpoint, seen)
        except Exception:  # noqa: BLE001 - told by the verdict, unless the meter is not borne: then there are no figures
            return {"warnings": tuple(_warnings(seen, None, plain))}
        return {"costs": costs, "warnings": tuple(_warnings(seen, metered, plain))}

    def _times(self, found: list[Implementation], results: list[Result]) -> list[float | None]:
        seconds: dict[str, list[float]] = {}
        runnable = [one for one, result in zip(found, results, strict=True) if result.verdict in ("agrees", "diverges")]
        for number in range(ROUNDS if runnable else 0):
            self.tell(f"timing, round {number + 1} of {ROUNDS}")
            for name, checkpoint in [("plain", None), *((one.name, one.checkpoint) for one in runnable)]:
                with suppress(Exception):  # was run before without one
                    seconds.setdefault(name, []).append(run(self.setting, checkpoint, steps=1).seconds)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        return [medians[one.name] / medians["plain"] if {one.name, "plain"} <= {*medians} else None for one in found]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"


def _frames(error: BaseException) -> list[str]:
    trace, files = error.__traceback__, []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return files


def _raised_in(error: BaseException, folder: Path) -> bool:
    return _frames(error)[-1].startswith(str(folder))


def _verdict(error: BaseException, one: Implementation) -> Literal["refuses", "crashes"]:
    """An error of the implementation's own, of a kind by which it may refuse, is a refusal; any other is a crash.

    Autograd's engine refuses for it where a saved tensor was changed in place, and its error has no frame of Python's.
    """
    if not isinstance(error, REFUSALS):
        return "crashes"
    last = _frames(error)[-1]
    own = {torch.utils.checkpoint.__file__, *_files_of(one)}
    if any(last == path or last.startswith(f"{path}/") for path in own):
        return "refuses"
    engine = last.endswith(("torch/autograd/graph.py", "torch/autograd/__init__.py"))
    return "refuses" if engine and any(word in str(error) for word in _AUTOGRAD) else "crashes"


def _files_of(one: Implementation) -> Iterable[str]:
    """The implementation's package, or its file where that lies in no package."""
    function: Any = getattr(one.checkpoint, "func", one.checkpoint)
    yield str(Path(impls.__file__).parent)
    module = sys.modules.get((getattr(function, "__module__", "") or "").partition(".")[0])
    if module is not None and getattr(module, "__file__", None) and module.__name__ not in ("torch", "__main__"):
        path = Path(module.__file__ or "")
        yield str(path.parent if path.name == "__init__.py" else path)


def _warnings(seen: Observations, metered: Run | None, plain: Run) -> Iterable[Warned]:
    twice = {name.rpartition(".")[0] or "the model itself": 0 for name in seen.updated_in_backward if name in plain.buffers}
    made, kept = plain.output_requires_grad, metered.output_requires_grad if metered else {}
    regions = metered.regions if metered else ()
    lost = [one for one in regions if made.get(one.key) and not (kept.get(one.key) or one.inputs_require_grad)]
    found = {
        "buffers": tuple(twice),
        "inputs": tuple(f"{one.name} ({one.line})" for one in lost),
        "training flags": _places(seen.training_flags),
        "Python's random numbers": _places(seen.python_random),
        "numpy's random numbers": _places(seen.numpy_random),
        "hooks": _places(seen.hooks),
    }
    return [Warned(kind, *WARNINGS[kind], places) for kind, places in found.items() if places]


def _places(seen: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name or 'the model itself'} ({line})" for name, line in seen.items())


WARNINGS = {
    "buffers": (
        "buffers are updated once more by the recomputation, in",
        "Leave these modules out of regions. (BatchNorm with a momentum of 1 - sqrt(1 - momentum) has the right averages.)",
    ),
    "inputs": (
        "no input requires grad, so nothing inside gets a gradient, in region",
        "Use a non-reentrant implementation, or let an input require grad (transformers: model.enable_input_require_grads()).",
    ),
    "training flags": (
        "train() or eval() is flipped inside a region, of module",
        "Flip it outside of regions, or put it back in a finally clause.",
    ),
    "Python's random numbers": (
        "random numbers of Python's are drawn, and drawn anew by the recomputation, in region",
        "Draw with torch, or draw outside and pass the number in.",
    ),
    "numpy's random numbers": (
        "random numbers of numpy's are drawn, and drawn anew by the recomputation, in region",
        "Draw with torch, or draw outside and pass the number in.",
    ),
    "hooks": (
        "hooks are registered on modules, parameters or arguments, and once more by the recomputation, in region",
        "Register them once, outside of regions.",
    ),
}
