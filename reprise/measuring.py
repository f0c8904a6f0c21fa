"""Subcommands that measure time, memory and work, and reproduce what papers claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT
from reprise.results import failed, require_one
from reprise.values import Device, File, Flag, Names, Positive, Rounds, option

Model = Literal["attention", "fused-attention", "resnet", "resnet50", "small-layers", "lstm", "experts"]
Workload = Literal["chain", Model, "sweeps"]  # of benches.models.workloads
Size = Annotated[Literal["S", "M", "L", "XL"], option()]
Paper = Literal["chen2016", "griewank2000", "rotor2019", "dtr2021", "korthikanti2022", "torch_budget", "nested90105", "offload"]


def compare(
    *,
    impl: Names = (),
    workload: Annotated[tuple[Workload, ...], option()] = (),
    size: Size = "S",
    device: Device = "cpu",
    budget: Annotated[tuple[str, ...], option(metavar="BYTES|FRACTION")] = (),
    backend: Annotated[str, option(metavar="NAME")] = "aot_eager_decomp_partition",
    rounds: Rounds = 15,
    results: File = None,
    write: Flag = False,
    redraw: Flag = False,
    check: Flag = False,
) -> int:
    """Measure time, memory and work of implementations on workloads.

    Each is shown beside plain and the ideal. On CUDA, the status is 1 when a limit is not reached.

    Args:
        impl: A contender, an installed implementation, or pkg.mod:attr; repeatable.
        workload: A workload, or the curves; repeatable.
        size: S and M for the CPU, L for a GPU, XL for bytes and operations alone.
        device: Where steps run: cpu, cuda, cuda:1, or fake for bytes and operations alone.
        budget: Add the fastest plan within this budget; repeatable.
        backend: Of torch.compile, such as inductor.
        rounds: Rounds of each timing.
        results: Where the results go.
        write: Publish a complete run: results, plots, and the table of docs/comparison.md.
        redraw: Measure nothing; plots, table and page anew from what is published.
        check: Measure nothing; fail when docs/comparison.md has another table than the results.
    """
    from benches.compare import command, report

    require_one({"--write": write, "--redraw": redraw, "--check": check}, or_none=True)
    limited = {"--impl": impl, "--workload": workload, "--budget": budget, "--results": results}
    if partial := [name for name, given in limited.items() if given and (write or redraw or check)]:
        action = "--write" if write else "--redraw" if redraw else "--check"
        raise InvalidOption(f"{action} is about a complete run; accepted is it without {', '.join(partial)}")
    if check:
        return failed([report.check(ROOT)])
    if redraw:
        command.redraw(ROOT)
        return 0
    choice = command.Choice(impl, workload, size, device, budget, backend, rounds)
    try:
        return int(not command.compare(choice, path=results, publish=write, root=ROOT))
    except RuntimeError as error:  # pytest could not run
        raise ValueError(str(error)) from error


def overhead(
    *,
    memory: Flag = False,
    growth: Flag = False,
    profile: Flag = False,
    bytes: Flag = False,
    scale: Positive = 1.0,
    write: Flag = False,
    check: Flag = False,
) -> int:
    """Measure what the nested checkpoint adds to the work that it repeats.

    It is shown beside what PyTorch's adds. The status is 1 when a limit does not hold.

    Args:
        memory: Python memory per saved tensor alone.
        growth: What must not grow, and depth, alone.
        profile: The ladder of minimal checkpoints alone: what is left.
        bytes: Peak bytes beside their predictions alone.
        scale: So many times the usual number of rounds.
        write: Measure everything and publish it: results, and the tables of docs/overhead.md.
        check: Measure nothing; fail when docs/overhead.md has other tables than the results.
    """
    given = {"memory": memory, "growth": growth, "profile": profile, "bytes": bytes}
    parts = [name for name, is_given in given.items() if is_given]
    if write and (parts or check or scale < 1):
        raise InvalidOption(
            f"--write publishes a complete run; accepted is it without {', '.join(f'--{name}' for name in given)} and --check, "
            f"and with a --scale of 1 or more, not {scale:g}"
        )
    from benches.overhead import command, tables

    if check:
        return failed([tables.SECTION.check(ROOT)])
    return int(not command.run_bench(parts=parts, scale=scale, publish=write, root=ROOT))


def budget(*, write: Flag = False, check: Flag = False) -> int:
    """Train a network within memory budgets that it exceeds plain.

    The status is 1 when plain fits a budget, or a plan does not.

    Args:
        write: Put the table into docs/comparison.md as well.
        check: Measure nothing; fail when docs/comparison.md has another table than the results.
    """
    from benches.budget import command

    require_one({"--write": write, "--check": check}, or_none=True)
    if check:
        return failed([command.SECTION.check(ROOT)])
    command.run_bench(publish=write, root=ROOT)
    return 0


def zoo(*, write: Flag = False, check: Flag = False) -> int:
    """Check tiny models of transformers, timm, torchvision and diffusers.

    Each is built with random weights and its package's own checkpointing. The status is 1 when one cannot be checked, or a
    budget is not kept.

    Args:
        write: Publish results/zoo-cpu.json, and the table of docs/zoo.md.
        check: Check no model; fail when docs/zoo.md has another table than the results.
    """
    from reprise.zoo import publishing

    require_one({"--write": write, "--check": check}, or_none=True)
    if check:
        return failed([publishing.SECTION.check(ROOT)])
    return failed(publishing.run_zoo(publish=write, root=ROOT))


def layer(*, device: Device = "cuda", rounds: Rounds = 15, write: Flag = False) -> int:
    """Measure time and bytes of a transformer layer on CUDA.

    None of it, its attention core or all of it is recomputed.

    Args:
        device: cuda, or one such as cuda:1.
        rounds: Rounds of the timing.
        write: Publish results/layer-cuda.json; without it, results go to results/runs.
    """
    from benches.layer import run_bench

    return int(not run_bench(device=device, rounds=rounds, publish=write, root=ROOT))


def offload(
    *,
    device: Device = "cuda",
    workload: Annotated[Model, option()] = "fused-attention",
    size: Annotated[Literal["S", "M", "L"], option()] = "L",
    rounds: Rounds = 15,
    write: Flag = False,
) -> int:
    """Measure what OffloadModel costs on CUDA.

    Its copies overlap with computation, or are waited for.

    Args:
        device: cuda, or one such as cuda:1.
        workload: The model.
        size: Of the model.
        rounds: Rounds of the timing.
        write: Publish results/offload-DEVICE.json; without it, results go to results/runs.
    """
    from benches.offload import run_bench

    options = {"device": device, "workload": workload, "size": size, "rounds": rounds}
    return int(not run_bench(**options, publish=write, root=ROOT))  # type: ignore[arg-type]


def reproduce(*papers: Paper, output: File = None) -> int:
    """Measure what papers claim, print it, and write results/papers.

    The status is 1 when a claim that must come out exactly does not, or when a trend fails.

    Args:
        papers: The papers; all without any.
        output: The directory for results; without it, what may not be published goes to results/runs.
    """
    from benches.reproduce import reproduce_papers

    return int(not reproduce_papers(papers, output))


COMMANDS: Mapping[Callable[..., Any], str] = {
    compare: "compare --impl nested --impl mypkg.mod:checkpoint --workload attention",
    reproduce: "reproduce chen2016 rotor2019",
    overhead: "overhead --profile",
    budget: "budget",
    zoo: "zoo",
    layer: "layer --device cuda",
    offload: "offload --workload lstm --size M",
}
