"""What the pipeline is compared with does the work that it claims to do. FBGEMM is not needed for anything else."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.end_to_end.fbgemm_way import LEARNING_RATE, Fbgemm, installed

pytestmark = [
    pytest.mark.skipif(not installed(), reason="FBGEMM is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
ROWS, DIM, BATCH, BATCHES = (3, 50, 7), 8, 64, 4


@pytest.fixture
def ids():
    rng = np.random.default_rng(1)
    starts = np.cumsum([0, *ROWS[:-1]])
    return np.stack([rng.integers(0, r, BATCH * BATCHES) + s for r, s in zip(ROWS, starts, strict=True)], 1)


@pytest.fixture
def labels(ids):
    """What a key of the second field alone decides."""
    return (ids[:, 1] % 2).astype(np.float32)


@pytest.fixture
def way(ids, labels):
    torch.manual_seed(1)
    way = Fbgemm(ids, labels, ROWS, DIM, (16,), BATCH)
    torch.nn.init.normal_(way.first_order.split_embedding_weights()[0])
    return way


def weights(way):
    """All keys' weights [K, D] and first-order weights [K, 1], copied."""
    embedding = torch.cat(list(way.embedding.split_embedding_weights())).detach().clone()
    return embedding, way.first_order.split_embedding_weights()[0].detach()[:, :1].clone()


def test_steps_match_rowwise_adagrad_by_hand(way, ids, labels):
    rows = [w.requires_grad_() for w in weights(way)]
    squares = [torch.zeros(len(w), 1) for w in rows]
    model = copy.deepcopy(way.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for at in range(BATCHES):
        part = slice(at * BATCH, (at + 1) * BATCH)
        embeddings, first = (torch.nn.functional.embedding(torch.from_numpy(ids[part]), w) for w in rows)
        output = model(torch.empty(BATCH, 0), embeddings, first.squeeze(2))
        optimizer.zero_grad()
        grads = torch.autograd.grad(
            binary_cross_entropy_with_logits(output, torch.from_numpy(labels[part])), rows + list(model.parameters())
        )
        for weight, square, grad in zip(rows, squares, grads, strict=False):
            square += grad.square().mean(1, keepdim=True)
            weight.data -= LEARNING_RATE * grad / (square.sqrt() + 1e-8)
        for parameter, grad in zip(model.parameters(), grads[2:], strict=True):
            parameter.grad = grad
        optimizer.step()
        way.step(at)
    for got, expected in zip(weights(way), rows, strict=True):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-4, atol=1e-5)
