"""Copies and sums of segments are plain loops, in one order of additions, with each other as gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.models.ragged import Buckets, Segments, TimeMajor, rearrange

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def segments_of(lengths):
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Segments(offsets, int(offsets[-1]))


@given(LENGTHS, st.integers(1, 5), st.integers(0, 99))
@examples(8, 200)
def test_a_sum_adds_the_values_of_an_example_one_by_one(lengths, width, seed):
    x = np.random.default_rng(seed).standard_normal((sum(lengths), width)).astype(np.float32)
    expected, begin = np.zeros((len(lengths), width), np.float32), 0
    for b, length in enumerate(lengths):
        for v in range(begin, begin + length):
            expected[b] += x[v]
        begin += length
    assert segments_of(lengths).sum(torch.from_numpy(x)).numpy().tobytes() == expected.tobytes()


@given(LENGTHS, st.integers(0, 99))
@examples(10, 100)
def test_segments_have_the_gradients_of_plain_indexing(lengths, seed):
    torch.manual_seed(seed)
    segments, scores = segments_of(lengths), torch.randn(sum(lengths), dtype=torch.float64).requires_grad_()
    rows = torch.randn(len(lengths), 3, dtype=torch.float64).requires_grad_()
    out = segments.sum(segments.softmax(scores * 30).unsqueeze(1) * segments.copy(rows) * segments.copy(rows))
    weights = torch.randn_like(out)
    found = torch.autograd.grad((out * weights).sum(), [scores, rows])
    parts = [part.softmax(0).sum() * row * row for part, row in zip((scores * 30).split(lengths), rows, strict=True)]
    expected = torch.stack(parts)
    torch.testing.assert_close(out, expected)
    for one, right in zip(found, torch.autograd.grad((expected * weights).sum(), [scores, rows]), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-7, atol=1e-8)


@given(LENGTHS)
@examples(8, 200)
def test_the_order_of_a_recurrence_goes_back_to_where_it_came_from(lengths):
    segments = segments_of(lengths)
    time, x = TimeMajor(segments), torch.arange(float(sum(lengths))).unsqueeze(1)
    assert torch.equal(time.back(time.order(x)), x)
    steps = time.order(segments.position_V().unsqueeze(1)).squeeze(1)
    assert steps.tolist() == sorted(steps.tolist())
    assert time.batch_sizes.tolist() == ([sum(n > t for n in lengths) for t in range(max(lengths))] or [1])
    longest = sorted((n for n in lengths if n), reverse=True)
    lasts = time.back_to_examples(torch.tensor(longest, dtype=torch.float64).unsqueeze(1))
    assert lasts.squeeze(1).tolist() == lengths


@given(LENGTHS, st.sampled_from([1, 2]), st.booleans(), st.integers(0, 99))
@examples(10, 100)
def test_attention_in_buckets_is_that_of_each_example_alone(lengths, heads, causal, seed):
    torch.manual_seed(seed)
    parts = [torch.randn(sum(lengths), 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    out = Buckets(segments_of(lengths)).attend(*parts, heads, causal)
    alone = []
    for q, k, v in zip(*(part.split(lengths) for part in parts), strict=True):
        of_heads = []
        for q_h, k_h, v_h in zip(*(one.chunk(heads, 1) for one in (q, k, v)), strict=True):
            scores = q_h @ k_h.T / (4 // heads) ** 0.5
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            of_heads.append(scores.softmax(1) @ v_h)
        alone.append(torch.cat(of_heads, 1))
    expected, weights = torch.cat(alone), torch.randn_like(out)
    torch.testing.assert_close(out, expected)
    found, right = (torch.autograd.grad((one * weights).sum(), parts, allow_unused=True) for one in (out, expected))
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one if one is not None else other, other)


def test_at_most_half_of_a_bucket_is_padding():
    lengths = [*range(60), 1000]
    real = sum(lengths)
    assert real <= Buckets(segments_of(lengths)).num_places <= 2 * real


@pytest.mark.parametrize("width", [1, 4])
def test_rearranged_rows_have_a_gradient_of_their_own_or_zeros(width):
    x = torch.randn(4, width, dtype=torch.float64).requires_grad_()
    source, target = torch.tensor([2, 4, 0, 4, 3]), torch.tensor([2, 5, 0, 4])
    assert torch.equal(rearrange(x, source, target).detach()[[0, 2, 4]], x.detach()[[2, 0, 3]])
    torch.autograd.gradcheck(lambda x: rearrange(x, source, target), [x])
