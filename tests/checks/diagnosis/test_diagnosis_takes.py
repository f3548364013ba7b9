"""The width and the lengths that a candidate takes."""

import pytest
import torch
from torch import nn

from mha_course.checks.diagnosis.calling import NoAdapter
from mha_course.checks.diagnosis.entry import diagnose
from mha_course.checks.diagnosis.takes import settled
from tests.checks.bank.right_third import (
    BareKernels,
    Table,
    TableAndMask,
    Unbatched,
    Whole,
    attend,
    heads_of,
    joined,
    short_table,
)

pytestmark = pytest.mark.unchecked


class Unscaled(Table):
    def forward(self, x):
        T = x.size(1)
        q, k, v = (heads_of(y, self.n_head) for y in self.c_attn(x).chunk(3, -1))
        s = (q @ k.mT).masked_fill(self.table[..., :T, :T] == 0, -torch.inf)
        return self.c_proj(joined(s.softmax(-1) @ v))


class Blocks(Whole):
    """Lengths must be multiples of 4; the blocks do not show in the numbers."""

    def forward(self, x, mask=None):
        if x.size(1) % 4:
            raise ValueError("the length must be divisible by 4")
        return self.run(x, x, x, mask)


class LengthOfTheQuery(nn.Module):
    """Reads the number of keys from the query."""

    def __init__(self, dim=12, heads=3):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, query, key, value):
        B, T, E = query.shape
        q, k, v = (
            f(x).view(B, T, self.heads, E // self.heads).transpose(1, 2)
            for f, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(joined(attend(q, k, v)))


def test_usual_lengths_are_kept():
    subject = settled(Whole())
    assert subject.lengths is None
    assert settled(lambda q, k, v: q).lengths is None


@pytest.mark.parametrize(
    ("make", "length"),
    [(lambda: Table(12, 2, 4), 4), (lambda: Table(12, 3, 4), 4), (lambda: Table(12, 2, 3), 3), (TableAndMask, 4)],
)
def test_a_table_that_ends_early_gets_what_it_takes(make, length):
    subject = settled(make())
    assert subject.lengths is not None
    assert {sizes.T for sizes in subject.sizes().values()} == {length}
    assert all(sizes.B not in (length, subject.heads()) for name, sizes in subject.sizes().items() if name != "square")


def test_of_a_function_too():
    assert settled(short_table).lengths == (3, 4)


def test_a_fault_with_a_short_table_is_named():
    assert diagnose(Unscaled()).names == ("no_scale",)


def test_lengths_that_must_be_divisible():
    subject = settled(Blocks())
    assert subject.lengths is not None
    assert subject.lengths[0] % 4 == 0
    assert diagnose(Blocks()).ok


def test_two_tokens_are_too_few():
    with pytest.raises(NoAdapter, match="two tokens"):
        settled(Table(12, 3, 2))
    verdict = diagnose(Table(12, 3, 2))
    assert not verdict.judged
    assert "two are too few" in verdict.fault


def test_the_length_of_the_query_for_the_keys_stays_a_fault():
    assert settled(LengthOfTheQuery()).lengths is None
    assert diagnose(LengthOfTheQuery()).names == ("key_length_from_query",)


def test_the_width_that_gives_numbers_is_found():
    subject = settled(BareKernels(10, 2, 5))
    assert subject.first.widths == (10, 10, 10)
    assert subject.heads() == 2


def test_one_sequence_alone():
    subject = settled(Unbatched())
    x = subject.inputs(subject.sizes()["even"], "T E")
    assert x.query.shape == (1, 5, 12)
    verdict = diagnose(Unbatched())
    assert verdict.ok
    assert any("(T, E)" in remark for remark in verdict.remarks)


def always(q, k, v):
    raise ValueError("never at any length")


def test_what_raises_always_raises_as_before():
    subject = settled(always)
    assert subject.lengths is None
    assert diagnose(always).names == ("raises",)


def test_search_that_runs_out_of_time_is_no_endless_loop(monkeypatch):
    from mha_course.checks.diagnosis import search

    code = compile("def reproduces(*args, **kwargs):\n    while True:\n        pass\n", search.__file__, "exec")
    names = {}
    exec(code, names)
    monkeypatch.setattr(search, "reproduces", names["reproduces"])
    verdict = diagnose(attend, seconds=0.3)
    assert not verdict.judged
    assert verdict.names == ()
    assert "the search for the fault took over 0.3 s" in verdict.fault
