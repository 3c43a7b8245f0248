"""Every model is its paper's equation, of as many parameters, and learns from all that it is given."""

import textwrap

import numpy as np
import pytest
import torch
from conftest import make_workflow
from support.oracle import equations
from torch import nn

from pipeline import models
from pipeline.models import (
    AITM,
    DCN,
    DNN,
    ESMM,
    FCN,
    FM,
    LR,
    PLE,
    AutoInt,
    DCNMix,
    DCNv2,
    DeepFM,
    FinalNet,
    MaskNet,
    MMoE,
    SharedBottom,
    WideDeep,
    xDeepFM,
)  # fmt: skip
from pipeline.models.losses import logits_of
from pipeline.models.mlp import ACTIVATIONS, mlp
from pipeline.preflight.check_model import check_model
from pipeline.training.build import build_model, row_layout
from pipeline.workflow import Workflow

F, D = 4, 3
HIDDEN = (6, 5)
SMALL = {
    "LR": (LR, {}, equations.lr),
    "FM": (FM, {}, equations.fm),
    "DNN": (DNN, {"hidden": HIDDEN}, equations.dnn),
    "DNN_normed": (DNN, {"hidden": HIDDEN, "batch_norm": True, "dropout": 0.5}, equations.dnn),
    "WideDeep": (WideDeep, {"hidden": HIDDEN}, equations.wide_deep),
    "DeepFM": (DeepFM, {"hidden": HIDDEN}, equations.deep_fm),
    "DCN": (DCN, {"hidden": HIDDEN, "cross_layers": 2}, equations.dcn),
    "DCNv2": (DCNv2, {"hidden": HIDDEN, "cross_layers": 2}, equations.dcn_v2_parallel),
    "DCNv2_stacked": (
        DCNv2,
        {"hidden": HIDDEN, "cross_layers": 2, "structure": "stacked", "batch_norm": True},
        equations.dcn_v2_stacked,
    ),
    "DCNMix": (DCNMix, {"hidden": HIDDEN, "cross_layers": 2, "experts": 3, "rank": 2}, equations.dcn_mix),
    "xDeepFM": (xDeepFM, {"hidden": HIDDEN, "cin": (3, 2)}, equations.x_deep_fm),
    "AutoInt": (AutoInt, {"attention_layers": 2, "heads": 2, "attention_dim": 3}, equations.auto_int),
    "FCN": (FCN, {"exponential_layers": 2, "linear_layers": 2}, equations.fcn),
    "FCN_heads": (FCN, {"exponential_layers": 1, "linear_layers": 2, "heads": 3}, equations.fcn),
    "FinalNet": (FinalNet, {"hidden": (6, 4), "second": (4, 4), "gates": True}, equations.final_net),
    "FinalNet_one": (
        FinalNet,
        {"hidden": (5, 4), "second": (), "residual": "sum"},
        equations.final_net_of_one_block,
    ),
    "MaskNet": (MaskNet, {"hidden": HIDDEN}, equations.mask_net),
    "MaskNet_parallel": (
        MaskNet,
        {"structure": "parallel", "hidden": (6,), "blocks": 2, "block_dim": 5, "reduction": 0.5},
        equations.mask_net,
    ),
    "SharedBottom": (SharedBottom, {"hidden": HIDDEN, "tower": (4,), "num_labels": 1}, equations.shared_bottom),
    "MMoE": (MMoE, {"hidden": HIDDEN, "tower": (4,), "experts": 3}, equations.mmoe),
    "PLE": (PLE, {"hidden": HIDDEN, "tower": (4,), "experts": 2, "shared_experts": 3}, equations.ple),
    "ESMM": (ESMM, {"hidden": HIDDEN}, equations.esmm),
    "AITM": (AITM, {"hidden": HIDDEN, "tower": (4,)}, equations.aitm),
}
TWO_LABELS = ("MMoE", "PLE", "ESMM", "AITM")


def labels_of(name):
    return ("click", "bought") if name in TWO_LABELS else ("click",)


MODELS = pytest.mark.parametrize("name", SMALL)
NUMBERS = pytest.mark.parametrize("num_numbers", [0, 2])


def make(name, num_numbers=2, dtype=torch.float64, **args):
    """A model of which nothing is as it was drawn, biases and running means included."""
    kind, own, _ = SMALL[name]
    torch.manual_seed(0)
    model = kind(F, num_numbers, D, **own | args).to(dtype)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) - 0.4 if value.ndim > 1 else torch.rand_like(value) + 0.1)
    return model


def examples(name, num_numbers=2, dtype=torch.float64, num_examples=5):
    rng = np.random.default_rng(1)
    first = F if getattr(SMALL[name][0], "first_order", False) else 0
    shapes = (num_examples, num_numbers), (num_examples, F, D), (num_examples, first)
    return [torch.from_numpy(rng.standard_normal(shape)).to(dtype).requires_grad_() for shape in shapes]


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@MODELS
@NUMBERS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_model_computes_the_equation_of_its_paper(name, num_numbers, dtype):
    model, given = make(name, num_numbers, dtype).eval(), examples(name, num_numbers, dtype)
    parameters = {key: value.double().numpy() for key, value in model.state_dict().items()}
    expected = SMALL[name][2](parameters, *(tensor.detach().double().numpy() for tensor in given))
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    assert model(*given).shape == ((5, 2) if name in TWO_LABELS else (5,))
    assert model(*given).detach().numpy() == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_the_example_of_a_model_of_ones_own_keeps_the_contract(tmp_path):
    found = {"torch": torch, "nn": nn}
    exec(textwrap.dedent(models.__doc__[models.__doc__.index("    class") :].rpartition("\n\n")[0]), found)
    workflow = make_workflow(tmp_path, kind=found["Mine"], args={})
    check_model(workflow, row_layout(workflow))
    logits, labels = torch.tensor([0.0, 2.0]), torch.tensor([[1.0], [0.0]])
    loss = build_model(workflow).loss
    each = [float(loss(logits[n : n + 1], labels[n : n + 1], None)) for n in range(2)]
    assert float(loss(logits, labels, None)) == pytest.approx(sum(each) / 2)
    assert float(loss(logits, labels, torch.tensor([3.0, 1.0]))) == pytest.approx((3 * each[0] + each[1]) / 4)


def test_several_labels_have_a_tower_each_on_one_network():
    model, given = make("SharedBottom", num_labels=3).eval(), examples("SharedBottom")
    parameters = {key: value.numpy() for key, value in model.state_dict().items()}
    expected = equations.shared_bottom(parameters, *(tensor.detach().numpy() for tensor in given))
    assert expected.shape == (5, 3)
    assert model(*given).detach().numpy() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_deep_part_has_the_requested_activation(activation):
    model, given = make("DNN_normed", activation=activation).eval(), examples("DNN_normed")
    parameters = {key: value.numpy() for key, value in model.state_dict().items()}
    x = equations.inputs(*(tensor.detach().numpy() for tensor in given[:2]))
    assert model(*given).detach().numpy() == pytest.approx(equations.mlp(parameters, x, activation)[:, 0], rel=1e-12)


@MODELS
def test_every_used_input_and_every_parameter_gets_a_gradient(name):
    model, given = make(name), examples(name)
    logits_of(model(*given)).square().sum().backward()
    unused = {"LR": {1}}.get(name, set())
    for at, tensor in enumerate(given):
        assert at in unused or not tensor.numel() or torch.all(tensor.grad.abs().sum(0) > 0)
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(
    "name", ["DCNMix", "xDeepFM", "AutoInt", "FM", "FCN", "FinalNet", "MaskNet", "PLE", "ESMM", "AITM"]
)
def test_gradients_agree_with_numerical_ones(name):
    model, (*given, first) = make(name).eval(), examples(name, num_examples=2)
    torch.autograd.gradcheck(lambda *inputs: model(*inputs, first), given)


@MODELS
def test_bfloat16_scores_are_near_and_their_gradients_finite(name):
    model, given = make(name, dtype=torch.float32), examples(name, dtype=torch.float32, num_examples=64)
    exact = model.eval()(*given).detach().numpy()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(*given).float()
    rounded.sum().backward()
    assert rounded.detach().numpy() == pytest.approx(exact, rel=0.05, abs=0.05 * float(abs(exact).max()))
    assert all(torch.all(parameter.grad.isfinite()) for parameter in model.parameters())


@MODELS
@NUMBERS
def test_an_example_is_scored_alone_as_in_a_batch(name, num_numbers):
    model, given = make(name, num_numbers).eval(), examples(name, num_numbers)
    alone = [model(*(tensor[at : at + 1] for tensor in given)) for at in range(5)]
    assert all(logit.shape == alone[0].shape == (1, *alone[0].shape[1:]) for logit in alone)
    assert torch.cat(alone).detach().numpy() == pytest.approx(model(*given).detach().numpy(), rel=1e-12)


def test_losses_of_parts_are_those_of_their_papers():
    labels, weights = torch.tensor([[1.0], [0.0], [1.0]]), torch.tensor([1.0, 2.0, 0.5])
    tensors = [torch.tensor(values) for values in ([0.4, 0.1, -0.3], [-1.5, 0.6, 0.1], [2.0, -1.0, -0.7])]

    def entropy(logits, of=None):
        p, y = torch.sigmoid(logits), labels[:, 0] if of is None else of
        return float((-(y * p.log() + (1 - y) * (1 - p).log()) * weights).sum() / weights.sum())

    both, first, second = (entropy(logits) for logits in tensors)
    assert first > both > second
    expected = both + (first - both) * first
    assert float(make("FCN").loss(tuple(tensors), labels, weights)) == pytest.approx(expected)
    taught = [entropy(logits, tensors[0].sigmoid()) for logits in tensors[1:]]
    assert float(make("FinalNet").loss(tuple(tensors), labels, weights)) == pytest.approx(both + sum(taught))
    assert float(make("FinalNet_one").loss(tensors[0], labels, weights)) == pytest.approx(both)
    logits, two = torch.stack(tensors[:2], 1), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    p = logits.sigmoid()
    too_likely = float((torch.clamp(p[:, 1] - p[:, 0], min=0) * weights).sum() / weights.sum())
    expected = sum(entropy(logits[:, t], two[:, t]) for t in range(2)) + 0.6 * too_likely
    assert float(make("AITM").loss(logits, two, weights)) == pytest.approx(expected)


def test_a_probability_of_both_near_one_has_a_finite_loss():
    model = make("ESMM", dtype=torch.float32)
    for tower in model.towers:
        tower[-1].bias.data.fill_(60.0)
    output = model(*examples("ESMM", dtype=torch.float32))
    assert 10 < float(output.detach()[:, 1].min()) <= float(output.detach()[:, 1].max()) < torch.inf


DEEP = {"hidden": (400, 400, 400), "batch_norm": True}
KEYS = 5389


@pytest.mark.parametrize(
    ("kind", "args", "width", "published", "biases"),
    [
        (LR, {}, 1, 5390, 0),
        (FM, {}, 11, 59280, 0),
        (DeepFM, DEEP, 11, 423280, 1),
        (DCN, DEEP | {"cross_layers": 3}, 10, 418591, 0),
        (DCNv2, DEEP | {"cross_layers": 4, "structure": "parallel"}, 10, 458391, 0),
        (xDeepFM, DEEP | {"cin": (64,)}, 11, 429809, 0),
    ],
)
def test_a_frappe_model_has_the_published_number_of_parameters(kind, args, width, published, biases):
    """BARS's logs have it, rows included. Its DeepFM has no bias but the MLP's."""
    embedding_dim = 0 if width == 1 else 10
    assert num_parameters(kind(10, 0, embedding_dim, **args)) + KEYS * width == published + biases


@MODELS
def test_a_workflow_read_from_json_builds_the_same_model(name, tmp_path):
    kind, args, _ = SMALL[name]
    workflow = make_workflow(tmp_path, kind=kind, args=args, labels=labels_of(name))
    read = Workflow.model_validate_json(workflow.model_dump_json())
    check_model(read, row_layout(read))
    one, other = build_model(workflow).state_dict(), build_model(read).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_defaults_draw_the_same_weights_as_torch():
    torch.manual_seed(3)
    drawn = mlp(7, (5, 4)).state_dict()
    torch.manual_seed(3)
    expected = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)).state_dict()
    assert list(drawn) == list(expected)
    assert all(torch.equal(drawn[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("LR", "FM")])
def test_xavier_init_draws_normal_weights_and_zero_biases(name):
    kind, args, _ = SMALL[name]
    torch.manual_seed(0)
    wide = {"hidden": (300, 200), "tower": (200,), "cin": (300, 200), "attention_dim": 30, "second": (200,), "heads": 2}
    args = args | {key: width for key, width in wide.items() if key in args}
    for layer in kind(30, 5, 16, **args, init="xavier").modules():
        if isinstance(layer, nn.Linear):
            assert layer.bias is None or not layer.bias.any()
            expected, weight = (2 / sum(layer.weight.shape)) ** 0.5, layer.weight.detach()
            assert float(weight.std()) == pytest.approx(expected, rel=0.2)
            assert float(weight.abs().max()) > 2.2 * expected


def test_each_matrix_of_an_expert_is_scaled_by_its_own_sides():
    cross = DCNMix(20, 0, 16, cross_layers=2, experts=3, rank=40).cross
    for parameter, sides in ((cross.v_KQRI, 360), (cross.u_KQIR, 360), (cross.c_KQRR, 80)):
        for matrix in parameter.flatten(0, 1):
            assert float(matrix.detach().std()) == pytest.approx((2 / sides) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("DNN", {"activation": "swish"}, "activation is 'swish'; expected one of relu, "),
        ("DNN", {"init": "he"}, "init is 'he'; expected one of torch, xavier"),
        ("DeepFM", {"dropout": 1.0}, "dropout is 1.0; expected a probability of at least 0 and less than 1"),
        ("DeepFM", {"dropout": "0.2"}, "dropout is '0.2'; expected a probability"),
        ("WideDeep", {"batch_norm": 1}, "batch_norm is 1; expected true or false"),
        ("WideDeep", {"hidden": [400, 0]}, "hidden[1] is 0; expected an integer of at least 1"),
        ("WideDeep", {"hidden": 400}, "hidden is 400; expected the widths of at least 0 layers"),
        ("DCN", {"hidden": []}, "hidden is []; expected the widths of at least 1 layers"),
        ("DCN", {"cross_layers": 0}, "cross_layers is 0; expected an integer of at least 1"),
        ("DCNv2", {"structure": "both"}, "structure is 'both'; expected one of stacked, parallel"),
        ("DCNMix", {"experts": 2.5}, "experts is 2.5; expected an integer of at least 1"),
        ("DCNMix", {"rank": -1}, "rank is -1; expected an integer of at least 1"),
        ("xDeepFM", {"cin": []}, "cin is []; expected the widths of at least 1 layers"),
        ("AutoInt", {"heads": 0}, "heads is 0; expected an integer of at least 1"),
        ("AutoInt", {"attention_dim": True}, "attention_dim is True; expected an integer of at least 1"),
        ("FCN", {"linear_dropout": 1}, "linear_dropout is 1; expected a probability"),
        ("FCN", {"heads": 2}, "model.embedding_dim is 3; expected a multiple of heads, which is 2"),
        (
            "FinalNet",
            {"hidden": [7]},
            "a layer's width is 7; residual 'concat' splits it into halves: use an even",
        ),
        ("MaskNet_parallel", {"reduction": 0.0}, "reduction times a block's inputs is 0; expected an integer"),
        ("AITM", {"num_labels": 1}, "num_labels is 1; expected an integer of at least 2"),
        ("FM", {"hidden": [4]}, "FM has no 'hidden'. It takes none"),
        ("DCN", {"drop_out": 0.1}, "DCN has no 'drop_out'; did you mean 'dropout'? It takes hidden"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(name, args, said, tmp_path):
    kind, own, _ = SMALL[name]
    workflow = make_workflow(tmp_path, kind=kind, args=own | args, labels=labels_of(name))
    with pytest.raises(ValueError, match=r"model\.args: ") as caught:
        check_model(workflow, row_layout(workflow))
    assert said in str(caught.value)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("embedding_dim", [0, 3])
def test_a_model_of_logits_brings_no_warning(name, embedding_dim, tmp_path):
    kind, args, _ = SMALL[name]
    workflow = make_workflow(tmp_path, kind=kind, args=args, embedding_dim=embedding_dim, labels=labels_of(name))
    said = []
    try:
        check_model(workflow, row_layout(workflow), said.append)
    except ValueError:
        assert not embedding_dim
    assert said == []


class Squashed(DeepFM):
    def forward(self, *given):
        return super().forward(*given).sigmoid()


class Normalized(DNN):
    """Its inputs have the same scale whatever they are, and it begins with outputs of 0.5."""

    def forward(self, numbers, embeddings, first):
        rows = torch.nn.functional.layer_norm(embeddings.flatten(1), (embeddings[0].numel(),))
        return super().forward(torch.zeros_like(numbers), rows.reshape(embeddings.shape), first) + 0.5


def test_a_model_that_returns_probabilities_brings_a_warning(tmp_path):
    said = {}
    for kind in (Squashed, Normalized):
        workflow = make_workflow(tmp_path, kind=kind)
        check_model(workflow, row_layout(workflow), (lines := []).append)
        said[kind] = lines
    assert said[Normalized] == []
    assert "warning: model.kind Squashed: forward returns only values from 0 to 1" in said[Squashed][0]
    assert "return logits, without a sigmoid (" in said[Squashed][0]
    assert "test_models.py, line " in said[Squashed][0]


@pytest.mark.parametrize("name", ["DNN", "DeepFM", "DCN", "DCNv2", "DCNMix", "AutoInt", "FCN", "MaskNet", "ESMM"])
def test_a_deep_model_without_inputs_is_refused(name):
    kind, args, _ = SMALL[name]
    with pytest.raises(ValueError, match=r"model\.embedding_dim"):
        kind(F, 0, 0, **args)
