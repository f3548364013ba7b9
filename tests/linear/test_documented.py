"""The errors that the docstrings name, measured again."""

import numpy as np
import pytest
import torch

from mha_course import attention
from mha_course.experiments import long
from mha_course.linear import delta, kernel, linformer, performer, reformer
from tests.linear.problems import relative

S, D, R = 256, 64, 64


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        q, k, v = torch.randn(3, 1, 1, S, D, generator=generator)
        key_mix, value_mix = torch.randn(2, R, S, generator=generator) / S**0.5
        square_k, square_v = torch.randn(2, S, S, generator=generator) / S**0.5
        pool = torch.eye(R).repeat_interleave(S // R, dim=1) / (S // R)
        one, eight = (reformer.random_rotations(n, D, 8, generator=generator) for n in (1, 8))
        for name, out in {
            "average": v.mean(2, keepdim=True),
            "kernel": kernel.attention(q, k, v),
            "random mixtures": linformer.attention(q, k, v, key_mix=key_mix, value_mix=value_mix),
            "R = S": linformer.attention(q, k, v, key_mix=square_k, value_mix=square_v),
            "averages of 4": linformer.attention(q, k, v, key_mix=pool, value_mix=pool),
            "1 round": reformer.attention(q, k, v, rotations=one),
            "8 rounds": reformer.attention(q, k, v, rotations=eight),
        }.items():
            found.setdefault(name, []).append(relative(out, attention(q, k, v).out))
        for name, rotations in (("13 %", one), ("65 %", eight)):
            found.setdefault(name, []).append(reformer.share_bucket(q, k, rotations).float().mean().item())
    return {name: float(np.mean(x)) for name, x in found.items()}


@pytest.mark.parametrize(
    ("name", "said", "module", "text"),
    [
        ("average", 0.80, kernel, "average of all values is 0.80"),
        ("average", 0.80, linformer, "average of all values is 0.80"),
        ("average", 0.80, reformer, "average of all values is 0.80"),
        ("kernel", 0.77, kernel, "is 0.77 of the"),
        ("random mixtures", 2.2, linformer, "2.2 with random mixtures"),
        ("R = S", 1.4, linformer, "(1.4)"),
        ("averages of 4", 0.73, linformer, "0.73 with"),
        ("1 round", 2.4, reformer, "2.4 away with 1 round"),
        ("13 %", 0.13, reformer, "13 % of pairs kept"),
        ("8 rounds", 0.53, reformer, "0.53 with 8"),
        ("65 %", 0.65, reformer, "(65 %)"),
    ],
)
def test_errors_at_variance_1(errors: dict[str, float], name: str, said: float, module, text: str) -> None:
    assert text in " ".join(module.attention.__doc__.split())
    assert errors[name] == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize(
    ("spread", "width", "said", "average"),
    [
        (0.5, 16, "0.23, 0.15, 0.08, 0.04", "0.24"),
        (1.0, 16, "1.04, 0.96, 0.86, 0.63", "0.76"),
        (1.0, 64, "1.98, 1.86, 1.71, 1.43", "0.77"),
    ],
)
def test_errors_of_performer(spread: float, width: int, said: str, average: str) -> None:
    text = " ".join(performer.attention.__doc__.split())
    assert said in text
    assert average in text
    found = long.performer_error([64, 256, 1024, 4096], spread, D=width).mean(1)
    np.testing.assert_allclose(found, [float(x) for x in said.split(", ")], rtol=0.05, atol=0.005)
    assert long.uniform_error(spread, D=width).mean() == pytest.approx(float(average), abs=0.01)


def test_recall_of_the_delta_rule() -> None:
    text = " ".join(delta.attention.__doc__.split())
    assert "8, 16, 32 pairs are recalled with 0.94, 0.79, 0.51 right (sum: 0.99, 0.95, 0.81; softmax: 1)" in text
    want = [[1, 0.99, 0.94], [1, 0.95, 0.79], [1, 0.81, 0.51]]
    np.testing.assert_allclose(long.recall([8, 16, 32]), want, atol=0.02)
