"""Randomness: a recomputation draws what forward drew, and nobody else's stream of random numbers notices it."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.verdicts import Diverges, Measured
from conformance.programs.generator.operators import BINARY, OPERATORS, UNARY, uncounted
from conformance.programs.scenarios import contexts
from conformance.programs.scenarios.regions import structure
from conformance.programs.scenarios.state import rng
from conformance.programs.scenarios.threads import concurrent_recomputations
from conformance.programs.strategies import named, programs
from conformance.programs.sums import Sums
from conformance.rows.for_readers import for_readers

MIXED = (*UNARY, *BINARY, *OPERATORS["dropout"])
_DISTRIBUTIONS = (
    "{0} * torch.randn(3, device=device).sum()",  # an odd number: normal ones come in pairs, and one is kept for later
    "{0} * torch.randn_like({0})",
    "{0} * torch.randint(1, 5, {0}.shape, device=device)",
    "{0}[torch.randperm({0}.shape[0], device=device)]",
    "{0} * torch.bernoulli(torch.full_like({0}, 0.5))",
    "{0} * torch.normal(torch.zeros_like({0}), 2.0)",
    "{0} * torch.poisson(torch.full_like({0}, 3.0))",
    "{0} * torch.empty_like({0}).exponential_()",
    "{0} * torch.empty_like({0}).log_normal_()",
    "{0}.index_select(0, torch.multinomial(torch.ones(3, device=device), {0}.shape[0]) % 2)",
    "torch.nn.functional.alpha_dropout({0}, 0.5, training=True)",
    "torch.nn.functional.gumbel_softmax({0})",
)
DISTRIBUTIONS = tuple(map(uncounted, _DISTRIBUTIONS))


@for_readers("everyday", "wrong gradient", "dropout, GPT, BERT, transformer, drop path, stochastic depth")
@law(programs(always=["dropout"]), needs=["rng"], floor=8)
def test_dropout_masks_are_replayed(case: Case) -> None:
    """The recomputation draws the dropout masks that forward drew."""
    case.equals_plain()


@for_readers("everyday", "wrong state", "dropout, random seed, reproducibility")
@law(programs(always=["dropout", "stream"]), needs=["rng"], floor=8)
def test_ambient_stream_is_left_alone(case: Case) -> None:
    """Random numbers drawn after forward, and after backward, are those that plain draws there."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "dropout, noise, augmentation")
@law(programs(always=["stream"], operators=MIXED), needs=["rng"], floor=8)
def test_draws_between_regions(case: Case) -> None:
    """Regions, nested ones included, replay their own draws whatever is drawn before, between and after them."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "noise, randn, bernoulli, VAE, diffusion, Gumbel")
@law(programs(always=["stream"], operators=DISTRIBUTIONS), needs=["rng"], floor=8)
def test_all_distributions_are_replayed(case: Case) -> None:
    """Whatever distribution a function draws from, the recomputation draws the same."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "rrelu")
@law(programs(always=["late-noise"]), needs=["rng"], floor=8)
def test_noise_that_is_saved_before_it_is_drawn(case: Case) -> None:
    """Noise comes back as it was also where an operator, such as rrelu, saves a buffer before it draws into it."""
    case.equals_plain()


REPEATED = named(rng.repeated, passes=st.integers(2, 6), nested=st.booleans())


@for_readers("advanced", "wrong gradient", "dropout, retain_graph")
@law(programs(always=["dropout", "retain", "stream"]) | REPEATED, needs=["rng"], floor=8)
def test_every_backward_draws_the_same(case: Case) -> None:
    """Each backward over a retained graph recomputes with forward's random numbers."""
    case.equals_plain()


PARTLY = named(rng.partly, before=st.integers(1, 3), after=st.integers(0, 2), nested=st.booleans())


@for_readers("advanced", "wrong gradient", "dropout, partial backward")
@law(programs(always=["dropout", "partial", "stream"]) | PARTLY, needs=["rng"], floor=8)
def test_a_partial_backward_draws_the_same(case: Case) -> None:
    """Backward of one output, then of all, recomputes with forward's random numbers both times."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "dropout, double backward, gradient penalty, create_graph")
@law(programs(always=["dropout", "create-graph", "stream"]), needs=["rng", "higher-order"], floor=8)
def test_second_derivatives_see_the_same_masks(case: Case) -> None:
    """Differentiating a gradient again recomputes with forward's random numbers."""
    case.equals_plain()


@for_readers("everyday", "wrong state", "random seed, get_rng_state, reproducibility")
@law(named(rng.state, draws=st.integers(1, 5), regions=st.integers(1, 3)), needs=["rng"])
def test_generator_state_is_left_alone(case: Case) -> None:
    """The state of the default generator after forward and after backward is plain's, bit for bit."""
    case.equals_plain()


@for_readers("advanced", "wrong state", "manual_seed")
@law(
    named(rng.reseeding, nested=st.just(True), seed=st.integers(0, 9), where=st.sampled_from(["inner", "outer", "both"])),
    needs=["rng"],
)
def test_seeding_inside(case: Case) -> None:
    """A function that seeds the generator does so for what follows it in forward, and for nothing in backward."""
    case.equals_plain()


REGIONS = st.integers(1, 2)


@for_readers("advanced", "wrong state", "fork_rng")
@law(
    named(rng.forking, seed=st.none() | st.integers(0, 9), regions=REGIONS, before=st.booleans(), after=st.booleans()),
    needs=["rng"],
)
def test_fork_rng_inside(case: Case) -> None:
    """torch.random.fork_rng inside a function forks the same streams in both runs."""
    case.equals_plain()


TWICE = Measured("noted", (("drawn twice", "True"),))


@for_readers("advanced", "wrong state", "preserve_rng_state")
@law(
    named(rng.unpreserved, regions=st.integers(1, 3), draws=st.integers(1, 4)),
    needs=["rng-option"],
    preserve_rng_state=False,
)
def test_preserve_rng_state_switched_off(case: Case) -> None:
    """With preserve_rng_state=False the stream moves on by what both runs draw, and nothing is put back."""
    seen = case.run()
    if not case.plain.notes["drawn once"]:
        raise AssertionError("the program does not foresee the stream that plain leaves")
    if case.recomputed and not seen.notes["drawn twice"]:
        where = "after forward's draws alone" if seen.notes["drawn once"] else "somewhere else"
        raise Diverges(f"the stream should be after the draws of forward and recomputation, and is {where}", TWICE)


FORMS = st.sampled_from(["positional", "list", "dict", "two"])


@for_readers("advanced", "wrong gradient", "torch.Generator")
@law(
    named(rng.explicit, form=FORMS, regions=REGIONS, nested=st.booleans(), again=st.booleans()),
    needs=["explicit-generators"],
)
def test_explicit_generators_are_replayed(case: Case) -> None:
    """Each torch.Generator that is an argument, also inside containers, is replayed, and ends where plain leaves it."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "torch.Generator, kwargs")
@law(
    named(rng.explicit, form=st.just("keyword"), regions=REGIONS, nested=st.booleans(), again=st.booleans()),
    needs=["explicit-generators", "keyword-arguments"],
    floor=2,
)
def test_explicit_generators_by_keyword(case: Case) -> None:
    """A torch.Generator that is passed by keyword is replayed, and ends where plain leaves it."""
    case.equals_plain()


ERRORS = st.sampled_from(["RuntimeError", "KeyboardInterrupt"])


@for_readers("advanced", "wrong state", "exception, retry, seed")
@law(named(rng.failing, error=ERRORS, before=st.integers(1, 3), nested=st.booleans()), needs=["rng"])
def test_an_error_leaves_the_stream_alone(case: Case) -> None:
    """An error in a recomputation leaves the ambient stream alone, and the next backward draws forward's numbers."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "dropout, threads, DataParallel")
@law(named(rng.threads, draws=st.integers(1, 6), retain=st.booleans()), needs=["rng"], effort=0.2, floor=2)
def test_two_threads_draw_their_own(case: Case) -> None:
    """Two threads that run backward at once, over a graph each, draw the numbers of their own forward."""
    case.equals_plain()


OTHER = st.sampled_from(["", "nested", "reentrant"])  # the same implementation, or one that is known
_BESIDE = {"other": OTHER, "first": st.booleans(), "seconds": st.sampled_from([0.2, 5]), "nested": st.booleans()}


# On an accelerator one thread runs the backwards of all.
@for_readers("advanced", "wrong gradient", "dropout, threads")
@law(named(concurrent_recomputations.beside, **_BESIDE), needs=["rng"], effort=0.4, floor=2, devices=["cpu"])
def test_recomputations_that_meet_draw_their_own(case: Case) -> None:
    """A recomputation draws its own numbers while another thread begins one, by the same implementation or by another."""
    case.equals_plain()


_JOINING = {"other": OTHER, "pool": st.booleans(), "passes": st.integers(1, 2)}


@for_readers("adversarial", "wrong gradient", "threads, deadlock")
@law(named(concurrent_recomputations.joining, **_JOINING), needs=["rng"], effort=0.5, floor=3, devices=["cpu"])
def test_a_recomputation_that_waits_for_another(case: Case) -> None:
    """A function may wait, also when it runs again, for another thread's recomputation, and both draw their own numbers."""
    case.equals_plain()


SOURCES, WHERE = st.sampled_from(["host", "first", "last"]), st.sampled_from(["current", "last", "all", "host too"])


@for_readers("advanced", "wrong gradient", "multi-GPU, model parallel, dropout, CUDA")
@law(named(rng.devices, source=SOURCES, where=WHERE, regions=REGIONS, nested=st.booleans()), needs=["rng"])
def test_every_device_is_replayed(case: Case) -> None:
    """Draws on the current device, on another and on several at once are replayed, also on those no argument is on."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "dropout, threads")
@law(named(rng.another_thread, draws=st.integers(1, 3), nested=st.booleans()), needs=["rng"], floor=3)
def test_another_thread_draws_the_same(case: Case) -> None:
    """A backward in another thread than forward recomputes with forward's random numbers."""
    case.equals_plain()


_AGAIN = {"times": st.integers(2, 4), "onward": st.just(False), "keyword": st.just(False), "draws": st.just(True)}


@for_readers("everyday", "wrong gradient", "dropout, shared layer, recurrent network")
@law(named(structure.called_again, **_AGAIN), needs=["rng"], floor=3)
def test_the_same_call_draws_anew(case: Case) -> None:
    """A function called again on the same tensors draws other numbers, and each recomputation those of its call."""
    case.equals_plain()


_KEPT = {"kept": st.integers(1, 2), "drawn": st.sampled_from(["dropout", "uniform", "normal"]), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "SAC, selective checkpointing, dropout")
@law(named(rng.kept_by_a_policy, Sums(terms=128), **_KEPT), needs=["context-fn", "rng"], recomputes=False, floor=3,
     context_fn=contexts.keeping_draws)  # fmt: skip
def test_what_is_drawn_after_what_a_policy_keeps(case: Case) -> None:
    """Numbers drawn after others that a selective policy keeps make no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()
