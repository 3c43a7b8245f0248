"""Every model of sequences is its paper's equation on padded input, for histories of any length, none included."""

from functools import partial

import numpy as np
import pytest
import torch
from support.oracle import padded

from pipeline.models import BST, DIEN, DIN, MeanPooling, SASRec
from pipeline.models.dice import Dice
from pipeline.models.history import HistoryModel
from pipeline.models.losses import logits_of
from pipeline.models.ragged import SequenceValues

F, X, D = 3, 2, 4
SIZES = {"history": (2, 1), "short": (1, 0)}
LENGTHS = {"history": (3, 0, 1, 9, 2, 5), "short": (0, 2, 0, 1, 4, 1)}
NET = {"hidden": (6, 5)}
UNIT = NET | {"attention": (7, 4)}
SMALL = {
    "MeanPooling": (MeanPooling, NET, padded.mean),
    "DIN": (DIN, UNIT, padded.din),
    "DIN_paper": (DIN, UNIT | {"softmax": False}, partial(padded.din, with_softmax=False)),
    "DIN_relu": (DIN, UNIT | {"attention_activation": "relu"}, padded.din),
    "DIEN": (DIEN, UNIT, padded.dien),
    "DIEN_agru": (DIEN, UNIT | {"gate": "agru"}, partial(padded.dien, gate="agru")),
    "DIEN_aigru": (DIEN, UNIT | {"gate": "aigru"}, partial(padded.dien, gate="aigru")),
    "BST": (BST, NET | {"heads": 2}, padded.bst),
    "BST_old": (BST, NET | {"heads": 2, "positions": 4}, padded.bst),
    "BST_mean": (
        BST,
        NET | {"heads": 4, "pooling": "mean", "layers": 2, "layer_norm": True},
        partial(padded.bst, pooling="mean", heads=4, layers=2, layer_norm=True),
    ),
    "BST_sum": (BST, NET | {"heads": 1, "pooling": "sum"}, partial(padded.bst, pooling="sum", heads=1)),
    "SASRec": (SASRec, NET | {"positions": 6, "block_dropout": 0.0}, padded.sas_rec),
    "SASRec_heads": (SASRec, NET | {"heads": 2, "block_dropout": 0.0}, partial(padded.sas_rec, heads=2)),
}
MODELS = pytest.mark.parametrize("name", SMALL)


def make(name, dtype=torch.float64, sizes=SIZES, **args):
    """A model of which nothing is as it was drawn, biases and running means included."""
    kind, own, _ = SMALL[name]
    torch.manual_seed(0)
    model = kind(F, X, D, sizes, **own | args).to(dtype)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) - 0.4 if value.ndim > 1 else torch.rand_like(value) + 0.1)
    return model


def examples(lengths=LENGTHS, dtype=torch.float64, sizes=SIZES):
    """Numbers, embeddings, first-order weights and sequences of a batch; all leaves need gradients."""
    torch.manual_seed(1)
    num_examples = len(next(iter(lengths.values())))

    def leaf(*shape):
        return torch.randn(*shape, dtype=dtype).requires_grad_()

    sequences = {}
    for name, (items, numbers) in sizes.items():
        offsets = torch.tensor([0, *lengths[name]]).cumsum(0)
        total = int(offsets[-1])
        sequences[name] = SequenceValues(
            {f"item_{n}": leaf(total, D) for n in range(items)},
            offsets,
            {f"number_{n}": leaf(total) for n in range(numbers)},
            {f"item_{n}": leaf(num_examples, D) for n in range(items)},
        )
    return leaf(num_examples, X), leaf(num_examples, F, D), leaf(num_examples, 0), sequences


def leaves(numbers, embeddings, first_order, sequences):
    found = [numbers, embeddings]
    for one in sequences.values():
        found += [*one.items.values(), *one.numbers.values(), *one.candidate.values()]
    return found


def padded_of(one):
    """A sequence side by side and padded to the longest example; what is padded are ones, which must not count."""
    lengths = one.offsets.diff()
    longest = max(1, int(lengths.max()))
    real = torch.arange(longest) < lengths.unsqueeze(1)
    columns = torch.cat([*one.items.values(), *(number.unsqueeze(1) for number in one.numbers.values())], 1)
    rows = []
    for begin, end in zip(one.offsets[:-1].tolist(), one.offsets[1:].tolist(), strict=True):
        rows.append(torch.cat([columns[begin:end], columns.new_ones(longest - end + begin, columns.shape[1])]))
    width = sum(item.shape[1] for item in one.items.values())
    items, numbers = torch.stack(rows).split([width, columns.shape[1] - width], 2)
    return {"items": items, "numbers": numbers, "candidate": torch.cat([*one.candidate.values()], 1), "real": real}


def expected(name, model, given, training):
    numbers, embeddings, _, sequences = given
    parameters = dict(model.named_parameters()) | dict(model.named_buffers())
    return padded.logits(
        SMALL[name][2], parameters, numbers, embeddings, [padded_of(one) for one in sequences.values()], training
    )


def gradients(logits, model, given):
    weights = torch.arange(1.0, len(logits) + 1, dtype=logits.dtype)
    wanted = [*leaves(*given), *model.parameters()]
    found = torch.autograd.grad((logits * weights).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(one) if grad is None else grad for one, grad in zip(wanted, found, strict=True)]


@MODELS
@pytest.mark.parametrize("lengths", [LENGTHS, *({"history": of, "short": of} for of in ((0,), (1,), (4,), (0, 0, 0)))])
@pytest.mark.parametrize("training", [False, True])
def test_a_model_is_the_equation_of_its_paper_on_padded_input(name, lengths, training):
    """Also for one example, or none with a value."""
    model, given = make(name).train(training), examples(lengths)
    wanted = expected(name, model, given, training)
    right = gradients(wanted, model, given)
    logits = model(*given)
    assert logits.shape == (len(lengths["history"]),)
    torch.testing.assert_close(logits, wanted, rtol=1e-11, atol=1e-11)
    for found, of_padded in zip(gradients(logits, model, given), right, strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, of_padded, rtol=1e-9, atol=1e-11)
    assert all(value.isfinite().all() for value in model.state_dict().values())


@MODELS
def test_a_history_is_scored_alone_as_in_a_batch(name):
    model, given = make(name).eval(), examples()
    numbers, embeddings, first, sequences = given
    together = model(*given)
    for b in range(6):
        alone = {}
        for key, one in sequences.items():
            begin, end = int(one.offsets[b]), int(one.offsets[b + 1])
            alone[key] = SequenceValues(
                {column: values[begin:end] for column, values in one.items.items()},
                torch.tensor([0, end - begin]),
                {column: values[begin:end] for column, values in one.numbers.items()},
                {column: values[b : b + 1] for column, values in one.candidate.items()},
            )
        logit = model(numbers[b : b + 1], embeddings[b : b + 1], first[b : b + 1], alone)
        torch.testing.assert_close(logit, together[b : b + 1], rtol=1e-11, atol=1e-11)


@MODELS
def test_bfloat16_scores_of_histories_are_near_and_gradients_finite(name):
    model, given = make(name, torch.float32), examples(dtype=torch.float32)
    exact = model.eval()(*given).detach()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(*given).float()
    rounded.sum().backward()
    torch.testing.assert_close(rounded.detach(), exact, rtol=0.06, atol=0.06 * exact.abs().max().item())
    assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves(*given))


@MODELS
def test_the_same_batch_gives_the_same_bits_again(name):
    def once(threads):
        torch.set_num_threads(threads)
        model, given = make(name, torch.float32).train(), examples(dtype=torch.float32)
        logits = model(*given)
        return [logits, *gradients(logits, model, given)]

    threads = torch.get_num_threads()
    try:
        runs = [once(2), once(2), once(2)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for other in runs[1:] for one, other in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("DI")])
@pytest.mark.parametrize("lengths", [{"history": (0, 0)}, {"short": (0, 0)}, {"history": (0, 0), "short": (0, 0)}])
def test_workers_without_values_take_part_in_every_sum(name, lengths):
    """Otherwise workers that have values wait for a worker without them, in the forward or in the backward pass."""

    def sums(lengths):
        model, found = make(name).train(), []
        for norm in (module for module in model.modules() if isinstance(module, Dice)):
            norm.add_up = lambda vector, norm=norm: found.append((norm.num_features, len(vector)))
        model(*examples(lengths)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        return found

    full = {"history": (2, 1), "short": (0, 3)}
    assert sums(full | lengths) == sums(full)


def test_the_auxiliary_loss_is_a_mean_over_examples():
    model, given = make("DIEN", auxiliary=0.5).train(), examples()
    torch.manual_seed(3)
    logits, own = model(*given)
    assert own.shape == (6,)
    assert own[0] > 0
    labels = torch.tensor([[1.0], [0.0]] * 3, dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 0.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[:, 0], reduction="none")
    wanted = ((entropy + 0.5 * own) * weights).sum() / weights.sum()
    torch.testing.assert_close(model.loss((logits, own), labels, weights), wanted)
    torch.testing.assert_close(model.loss((logits, own), labels, weights.unsqueeze(1)), wanted.unsqueeze(0))
    model.loss((logits, own), labels, None).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert isinstance(model.eval()(*given), torch.Tensor)
    assert not hasattr(make("DIEN"), "loss")


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("DIN", {"softmax": 1}, "softmax is 1; expected true or false"),
        ("DIN", {"attention_activation": "swish"}, "activation is 'swish'; expected one of relu, "),
        ("DIEN", {"gate": "gru"}, "gate is 'gru'; expected one of augru, agru, aigru"),
        ("BST", {"pooling": "max"}, "pooling is 'max'; expected one of target, mean, sum"),
        ("DIEN", {"auxiliary": "1"}, "auxiliary is '1'; expected a number of at least 0"),
        ("DIEN", {"auxiliary": -1}, "auxiliary is -1; expected a number of at least 0"),
        ("DIEN", {"auxiliary": float("nan")}, "auxiliary is nan; expected a number of at least 0"),
        ("BST", {"layer_norm": "no"}, "layer_norm is 'no'; expected true or false"),
        ("BST", {"heads": 5}, "12 numbers, positions included; expected a multiple of heads, 5"),
        ("SASRec", {"positions": 0}, "positions is 0; expected an integer of at least 1"),
        ("MeanPooling", {"sizes": {}}, "MeanPooling reads sequences, but there are none"),
    ],
)
def test_a_wrong_argument_of_a_sequence_model_is_refused(name, args, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make(name, **args)
    assert said in str(caught.value)


def test_every_exported_sequence_model_is_tested_here():
    from pipeline import models

    own = {kind for name in models.__all__ if issubclass(kind := getattr(models, name), HistoryModel)}
    assert own == {kind for kind, *_ in SMALL.values()}
    assert logits_of(make("DIN")(*examples())).ndim == 1


ITEMS, KINDS, STEPS = 60, 30, 200


def auc(scores, labels):
    ranks = np.empty(len(scores))
    ranks[scores.argsort(kind="stable")] = np.arange(1, len(scores) + 1)
    return (ranks[labels].sum() - labels.sum() * (labels.sum() + 1) / 2) / (labels.sum() * (~labels).sum())
