"""The products of self-attention in steps, each of which a wrong solution may count wrongly."""

from collections.abc import Callable

from mha_course.checks.task import Case, by_steps

Steps = dict[str, float]
OfStep = Callable[[str, int, int, int, int], float]  # step, B, S, E, H

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
INPUTS = ("q_proj", "k_proj", "v_proj")
BOTH = ("scores", "weighted sum")
STEPS = (*INPUTS, *BOTH, "out_proj")


def flop_cases() -> tuple[Case, ...]:
    """Sizes that differ in each case, among them one head, one token and one sequence."""
    return tuple(
        Case({"B": B, "S": S, "E": H * D, "H": H, "D": D}, (B, S, H * D, H))
        for B, S, H, D in ((2, 3, 5, 7), (3, 13, 7, 2), (5, 11, 2, 3), (1, 7, 3, 5), (7, 2, 1, 13), (3, 1, 2, 11))
    )


def projection_of(step: str, B: int, S: int, E: int, H: int) -> float:
    """The multiply-adds of one sequence with a matrix (E, E)."""
    return S * E * E


def scores_of(step: str, B: int, S: int, E: int, H: int) -> float:
    """The multiply-adds of all pairs of one sequence, in all heads."""
    return S * S * E


@by_steps
def counted(
    factor: OfStep = lambda step, B, S, E, H: 2,
    batch: OfStep = lambda step, B, S, E, H: B,
    project: OfStep = projection_of,
    meet: OfStep = scores_of,
    more: OfStep = lambda step, B, S, E, H: 0,
) -> Callable[..., Steps]:
    """A solution, some of its steps changed: a factor times B times the multiply-adds of one sequence."""

    def attention_flops(B: int, S: int, E: int, H: int) -> Steps:
        steps = {}
        for step in STEPS:
            of = (step, B, S, E, H)
            one = project(*of) if step in PROJECTIONS else meet(*of)
            steps[step] = factor(*of) * batch(*of) * one + more(*of)
        return steps

    return attention_flops


def only_in(steps: tuple[str, ...], changed: Callable[[int, int, int, int], float], otherwise: OfStep) -> OfStep:
    """One function for some of the steps, another for the rest."""
    return lambda step, *sizes: changed(*sizes) if step in steps else otherwise(step, *sizes)


def factor_of(changed: float, *steps: str) -> OfStep:
    """Another factor than 2 in some of the steps."""
    return only_in(steps, lambda B, S, E, H: changed, lambda step, *sizes: 2)


def projecting(changed: Callable[[int, int, int, int], float], *steps: str) -> OfStep:
    """Other multiply-adds of one sequence in some of the projections."""
    return only_in(steps, changed, projection_of)


def meeting(changed: Callable[[int, int, int, int], float], *steps: str) -> OfStep:
    """Other multiply-adds of one sequence in the scores, the weighted sum or both."""
    return only_in(steps, changed, scores_of)


def more_in(added: Callable[[int, int, int, int], float], *steps: str) -> OfStep:
    """What is added in some of the steps."""
    return only_in(steps, added, lambda step, *sizes: 0)


def addition_less(step: str, B: int, S: int, E: int, H: int) -> float:
    """One addition less than products in each sum: as many as the step has results."""
    return -B * {"scores": H * S * S}.get(step, S * E)


def of_each_score(each: int, B: int, S: int, E: int, H: int) -> float:
    """So many operations on each score."""
    return each * B * H * S * S


def of_past_keys(more: int, B: int, S: int, E: int, H: int) -> float:
    """The multiply-adds of one sequence whose queries meet the keys up to their own, or those before it."""
    return S * (S + more) * E / 2
