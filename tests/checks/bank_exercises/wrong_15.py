"""Wrong solutions of the exercises of notebook 15: FLOPs of each step."""

from tests.checks.bank_exercises import wrong

flops = "attention_flops"
STEPS = ("q_proj", "k_proj", "v_proj", "scores", "weighted sum", "out_proj")

FACTOR_2 = r"(factor|times).*\b2\b|\b2\b.*(miss|forg|per|each)|multipl\w+ (and|only)|multiply-add|half|one FLOP"
NAMES = r"key|name|entr|step|miss|lack"


@wrong(flops, "a multiply-add is counted as one", FACTOR_2)
def multiply_adds(B, S, E, H):
    proj = B * S * E * E
    attn = B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "the factor 2 is missing in the projections", FACTOR_2)
def factor_in_attention_alone(B, S, E, H):
    D = E // H
    proj = B * S * E**2
    scores = 2 * B * H * S * S * D
    return dict(zip(STEPS, (proj, proj, proj, scores, scores, proj), strict=True))


@wrong(flops, "the factor 2 is missing in scores and weighted sum", FACTOR_2)
def factor_in_projections_alone(B, S, E, H):
    out = {name: 2 * B * S * E * E for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    out["scores"] = out["weighted sum"] = B * H * S * S * (E // H)
    return out


@wrong(
    flops, "H heads of width E: the heads are counted twice", r"head.*(twice|two times|width)|E instead of D|width E"
)
def heads_twice(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 2 * B * H * S * S * E
    return dict(q_proj=proj, k_proj=proj, v_proj=proj, scores=attn, out_proj=proj, **{"weighted sum": attn})


@wrong(flops, "only one head is counted", r"(one|single|a) head|head.*(miss|forg|not)|number of heads")
def one_head(B, S, E, H):
    D = E // H
    proj = 2 * B * S * E * E
    attn = 2 * B * S * S * D
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "the batch is forgotten", r"batch|\bB\b|sample|sequence")
def one_sequence(B, S, E, H):
    proj, attn = 2 * S * E**2, 2 * S**2 * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "B is missing in the scores and the weighted sum", r"batch|\bB\b|sample|sequence")
def batch_in_projections(B, S, E, H):
    D = E // H
    result = {}
    for name in STEPS:
        result[name] = 2 * (B * S) * E * E if "proj" in name else 2 * H * S * D * S
    return result


@wrong(flops, "scores are counted linear in S", r"\bS\b|each (query|key)|every (query|key)|pair|tokens?|length|square")
def linear_scores(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 2 * B * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "a projection is counted as if every token met every token", r"\bS\b|token|square|quadratic|pair")
def square_projections(B, S, E, H):
    proj = 2 * B * S * S * E
    return dict.fromkeys(STEPS, proj)


@wrong(flops, "a projection is counted for one head", r"(one|single|a) head|width D|E x D|D instead|head")
def one_head_projection(B, S, E, H):
    D = E // H
    proj = 2 * B * S * E * D
    attn = 2 * B * H * S * S * D
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "projections are multiplied by the number of heads", r"head")
def projections_times_heads(B, S, E, H):
    proj = 2 * B * S * E * E * H
    attn = 2 * B * H * S * S * (E // H)
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "additions are counted as n - 1", r"add|n - 1|E - 1|one (less|fewer)|exact")
def one_addition_less(B, S, E, H):
    D = E // H
    proj = B * S * E * (2 * E - 1)
    return {
        "q_proj": proj,
        "k_proj": proj,
        "v_proj": proj,
        "scores": B * H * S * S * (2 * D - 1),
        "weighted sum": B * H * S * D * (2 * S - 1),
        "out_proj": proj,
    }


@wrong(flops, "the bias is counted too", r"bias|add")
def with_bias(B, S, E, H):
    proj = 2 * B * S * E * E + B * S * E
    attn = 2 * B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "the scaling and the softmax are counted with the scores", r"softmax|scal|divi|exponent")
def with_softmax(B, S, E, H):
    D = E // H
    proj = 2 * B * S * E * E
    qk = 2 * B * H * S * S * D + 5 * B * H * S * S
    av = 2 * B * H * S * S * D
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": qk, "weighted sum": av, "out_proj": proj}


@wrong(flops, "half of the scores, as if they were causal", r"caus|half|triang|factor|hidden")
def causal_half(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = B * S * (S + 1) * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "each projection holds the count of all three", r"three|all|3|together|twice|each")
def three_in_each(B, S, E, H):
    qkv = 6 * B * S * E * E
    attn = 2 * B * S * S * E
    out = 2 * B * S * E * E
    return {"q_proj": qkv, "k_proj": qkv, "v_proj": qkv, "scores": attn, "weighted sum": attn, "out_proj": out}


@wrong(flops, "scores and weighted sum hold the count of both", r"both|together|twice|two|4|each")
def both_in_each(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 4 * B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "D is taken as H", r"\bD\b|width|head")
def width_is_number_of_heads(B, S, E, H):
    D = H
    proj = 2 * B * S * E * E
    attn = 2 * B * H * S * S * D
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "multiplications are counted for a whole training step, forward and backward", r"backward|train|3|three")
def with_backward(B, S, E, H):
    proj = 3 * 2 * B * S * E * E
    attn = 3 * 2 * B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "scores and projections have changed places", r"chang|swap|place|instead|exchang")
def exchanged(B, S, E, H):
    proj = 2 * B * S * S * E
    attn = 2 * B * S * E * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(flops, "the total alone is returned", r"dict|an int|total")
def total_alone(B, S, E, H):
    return 8 * B * S * E * E + 4 * B * S * S * E


@wrong(flops, "a step has another name", NAMES)
def other_names(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 2 * B * S * S * E
    return {"q": proj, "k": proj, "v": proj, "scores": attn, "out": attn, "o": proj}


@wrong(flops, "the output projection is missing", NAMES)
def no_output(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 2 * B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn}


@wrong(flops, "the total stands among the steps", NAMES)
def total_among_steps(B, S, E, H):
    proj = 2 * B * S * E * E
    attn = 2 * B * S * S * E
    steps = {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}
    steps["total"] = sum(steps.values())
    return steps


@wrong(
    flops,
    "the weighted sum is counted as one product for each query, not for each key",
    r"\bS\b|key|weighted sum|linear",
)
def weighted_sum_of_one_key(B, S, E, H):
    D = E // H
    proj = 2 * B * S * E * E
    return {
        "q_proj": proj,
        "k_proj": proj,
        "v_proj": proj,
        "scores": 2 * B * H * S * S * D,
        "weighted sum": 2 * B * H * S * D,
        "out_proj": proj,
    }


@wrong(flops, "the projections are linear in E: a matrix is counted as a vector", r"\bE\b|feature|width|linear|matri")
def linear_in_features(B, S, E, H):
    proj = 2 * B * S * E
    attn = 2 * B * S * S * E
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}


@wrong(
    flops,
    "the heads are forgotten in the scores: D in place of E, and no factor 2",
    r"head.*\b2\b|\b2\b.*head|two faults",
)
def two_slips(B, S, E, H):
    D = E // H
    proj = B * S * E * E
    attn = B * S * S * D
    return {"q_proj": proj, "k_proj": proj, "v_proj": proj, "scores": attn, "weighted sum": attn, "out_proj": proj}
