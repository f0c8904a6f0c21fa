"""The zoo, checked: each model under several implementations, and some of them within a budget."""

from __future__ import annotations

import glob
import importlib
import os
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

import impls
from reprise.model_check.budgets.choice import Choice
from reprise.model_check.checking import check
from reprise.model_check.comparison import TensorsCompared
from reprise.model_check.metering import Costs
from reprise.model_check.regions import Key
from reprise.model_check.report import Result
from reprise.model_check.run import Setting, run
from reprise.zoo import other_models, time_of_a_check, transformers_models
from reprise.zoo.architecture import Architecture
from reprise.zoo.torchvision_import import import_torchvision

IMPLEMENTATIONS = "torch-nonreentrant", "torch-reentrant", "nested", "native", "reentrant"
PACKAGES = "transformers", "peft", "timm", "torchvision", "diffusers", "scipy"
BUDGET = "60%"
BUDGETED_BY = "nested"
BUDGETED = {
    "transformers": ("GPT-2", "Llama", "Mixtral", "Mamba", "BERT", "T5", "ViT", "Whisper", "Wav2Vec2"),
    "diffusers": ("UNet2DCondition",),
}
ROUNDS, STEPS = 13, 3  # rounds in which both choices are timed, by the fastest of a few steps; the 4th of 13 is the quartile


def architectures() -> tuple[Architecture, ...]:
    """The models of the zoo."""
    return (*transformers_models.architectures(), *other_models.architectures())


def prepare() -> dict[str, str]:
    """Import the packages, so that they download and log nothing. Returns their versions; raises ModuleNotFoundError.

    The process is not left as it was: HF_HUB_OFFLINE is set in its environment, and PyTorch computes in one thread from now on.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in PACKAGES:
        metadata.version(name)
    import_torchvision()
    importlib.import_module("transformers").logging.set_verbosity_error()
    importlib.import_module("diffusers").logging.set_verbosity_error()
    torch.set_num_threads(1)
    return {name: metadata.version(name) for name in PACKAGES}


def available() -> tuple[str, ...]:
    """Those of the implementations that exist here: ``native`` needs a compiler."""
    return tuple(name for name in IMPLEMENTATIONS if name not in impls.COMPILED or _is_built(name))


def _is_built(name: str) -> bool:
    try:
        impls.find(name)
    except ValueError:
        return False
    return True


def examined(architecture: Architecture, implementations: Sequence[str]) -> dict[str, Any]:
    """What a check found in a model, as it is stored; ``error`` says why it could not be checked, if so."""
    row = {name: getattr(architecture, name) for name in ("name", "package", "kind")}
    try:
        report = check(architecture.build, impl=implementations)
        if report.plain is None:
            raise ValueError(f"nothing was measured: {report.not_measured}")
        return {
            **row,
            "error": "",
            "regions": len(report.regions),
            "kept": report.plain.kept_bytes,
            "peak": report.plain.peak_bytes,
            "implementations": {one.implementation: row_of_result(one, report.plain) for one in report.results},
        }
    except Exception as error:  # noqa: BLE001 - whatever it is, it is stored
        return {**row, "error": f"{type(error).__name__}: {error}"}


def row_of_result(one: Result, plain: Costs) -> dict[str, Any]:
    """What of a result is stored, as part of a model's row."""
    compared, costs = one.comparison, one.costs
    diverges = one.verdict == "diverges"
    again = costs.again_flops / plain.forward_flops if costs and plain.forward_flops else None
    return {
        "verdict": one.verdict,
        "error": one.error,
        "rounding": compared is not None and compared.is_rounding,
        "differs": [*_differences(compared.first_parts, compared.first_states)] if diverges and compared else [],
        "differs_later": [*_differences(compared.later_parts, compared.later_states)] if diverges and compared else [],
        "warnings": {warned.kind: len(warned.places) for warned in one.warnings},
        "calls": one.calls,
        "recomputations": one.recomputations,
        "kept": costs.kept_bytes if costs else None,
        "peak": costs.peak_bytes if costs else None,
        "flops_again": again,
    }


def _differences(parts: Mapping[str, TensorsCompared], states: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, part in parts.items():
        if not part.agrees:
            count = f"{len(part.differing) + len(part.missing)} of {part.total} " if part.total > 1 else ""
            yield f"{count}{name}"
    yield from (name for name, differing in states.items() if differing)


def budgeted(architecture: Architecture) -> dict[str, Any]:
    """What was chosen for a model within the budget, as it is stored. Raises ValueError and what ``check`` does."""
    report = check(architecture.build, impl=BUDGETED_BY, budget=BUDGET, steps=1)
    chosen, plain = report.results[0].choice, report.plain
    if chosen is None or plain is None:
        raise ValueError(report.not_measured or report.results[0].budget_error or str(report))
    return {
        "name": architecture.name,
        "package": architecture.package,
        "plain": plain.storages_peak_bytes,
        "budget": chosen.budget,
        "predicted": chosen.predicted,
        "executed": chosen.executed,
        "chosen": len(chosen.globs) + len(chosen.unnamed),
        "regions": len(report.region_costs),
        "agrees": chosen.agrees,
        "flops_plain": plain.flops,
        "flops": chosen.flops,
        "flops_of_all": chosen.flops_of_all,
        "time_beside_all": quartiles_of_time(architecture, chosen),
    }


def quartiles_of_time(architecture: Architecture, chosen: Choice) -> tuple[float, ...]:
    """Seconds of a step with the regions chosen, as a ratio to those with all: the quartiles of rounds, lowest first.

    In each round a model is built, and its steps run, for the one and then for the other.
    """
    setting, checkpoint = Setting(architecture.build, steps=STEPS), impls.get(BUDGETED_BY).checkpoint
    globs, unnamed = {*chosen.globs}, {*chosen.unnamed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each run would repeat the model's warnings
        outermost = [one for one in run(setting, None, steps=1).regions if len(one.key) == 1]
        every = frozenset(one.key for one in outermost)
        some = frozenset(one.key for one in outermost if glob.escape(one.name) in globs or one.name in unnamed)

        def seconds(keys: frozenset[Key]) -> float:
            return min(run(setting, checkpoint, only=keys).seconds)

        return tuple(statistics.quantiles([seconds(some) / seconds(every) for _ in range(ROUNDS)], method="inclusive"))


def measured(tell: Callable[[str], object]) -> dict[str, Any]:
    """All rows, as they are stored."""
    models, implementations = architectures(), available()
    tell("the time of a check")
    time_taken = time_of_a_check.measured()  # first, since it raises if the check does not agree
    rows, budgets = [], []
    for number, one in enumerate(models, 1):
        tell(f"{number} of {len(models)}: {one.package} {one.name}")
        rows.append(examined(one, implementations))
    for one in models:
        if one.name in BUDGETED.get(one.package, ()):
            tell(f"{one.package} {one.name} within {BUDGET} of plain's peak")
            try:
                budgets.append(budgeted(one))
            except Exception as error:  # noqa: BLE001 - whatever it is, the model's row tells it
                row = rows[models.index(one)]
                row["error"] = row["error"] or f"within {BUDGET}: {type(error).__name__}: {error}"
    return {"implementations": implementations, "rows": rows, "budgets": budgets, "time_of_a_check": time_taken}
