"""The models' equations from the papers in plain NumPy, float64: one function per model, with parameters by name."""

import math

import numpy as np


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mlp(p, x, activation="relu", name="mlp"):
    """Multi-layer perceptron, layers in the order of the parameters' numbers; the last is linear if it has one
    output."""
    numbers = sorted({int(key.split(".")[1]) for key in p if key.startswith(f"{name}.")})
    linears = [n for n in numbers if p[f"{name}.{n}.weight"].ndim == 2]
    for n in linears:
        x = linear(p, f"{name}.{n}", x)
        if f"{name}.{n + 1}.running_mean" in p:
            mean, variance = (p[f"{name}.{n + 1}.running_{what}"] for what in ("mean", "var"))
            x = (x - mean) / np.sqrt(variance + 1e-5) * p[f"{name}.{n + 1}.weight"] + p[f"{name}.{n + 1}.bias"]
        if n != linears[-1] or x.shape[1] > 1:
            x = ACTIVATIONS[activation](x)
    return x


def inputs(numbers, embeddings):
    return np.concatenate([embeddings.reshape(len(embeddings), -1), numbers], 1)


def lr(p, numbers, embeddings, first):
    return p["bias"] + first.sum(1) + numbers @ p["number_weights_X"]


def fm(p, numbers, embeddings, first):
    fields = embeddings.shape[1]
    pairs = [(embeddings[:, i] * embeddings[:, j]).sum(1) for i in range(fields) for j in range(i)]
    return lr(p, numbers, embeddings, first) + sum(pairs)


def dnn(p, numbers, embeddings, first):
    return mlp(p, inputs(numbers, embeddings))[:, 0]


def wide_deep(p, *given):
    return lr(p, *given) + dnn(p, *given)


def deep_fm(p, *given):
    return fm(p, *given) + dnn(p, *given)


def dcn(p, numbers, embeddings, first):
    x0 = x = inputs(numbers, embeddings)
    for layer in range(2):
        w, b = p[f"cross.{layer}.weight.weight"][0], p[f"cross.{layer}.bias_I"]
        x = np.array([x0_b * (x_b @ w) + b + x_b for x0_b, x_b in zip(x0, x, strict=True)])
    return linear(p, "out", np.concatenate([x, mlp(p, x0)], 1))[:, 0]


def dcn_v2_cross(p, x0):
    x = x0
    for layer in range(2):
        w, b = p[f"cross.layers.{layer}.weight"], p[f"cross.layers.{layer}.bias"]
        x = np.array([x0_b * (w @ x_b + b) + x_b for x0_b, x_b in zip(x0, x, strict=True)])
    return x


def dcn_v2_parallel(p, numbers, embeddings, first):
    x0 = inputs(numbers, embeddings)
    return linear(p, "out", np.concatenate([dcn_v2_cross(p, x0), mlp(p, x0)], 1))[:, 0]


def dcn_v2_stacked(p, numbers, embeddings, first):
    return mlp(p, dcn_v2_cross(p, inputs(numbers, embeddings)))[:, 0]


def dcn_mix(p, numbers, embeddings, first):
    x0 = x = inputs(numbers, embeddings)
    for v, c, u, b in zip(*(p[f"cross.{name}"] for name in ("v_KQRI", "c_KQRR", "u_KQIR", "bias_KI")), strict=True):
        after = []
        for x0_b, x_b in zip(x0, x, strict=True):
            gates = softmax(p["cross.gate.weight"] @ x_b)
            experts = [x0_b * (u[q] @ np.tanh(c[q] @ np.tanh(v[q] @ x_b)) + b) for q in range(len(v))]
            after.append(sum(gate * expert for gate, expert in zip(gates, experts, strict=True)) + x_b)
        x = np.array(after)
    return linear(p, "out", np.concatenate([x, mlp(p, x0)], 1))[:, 0]


def x_deep_fm(p, numbers, embeddings, first):
    pooled = []
    for e in embeddings:
        maps, sums = e, []
        for layer in range(2):
            weight, bias = p[f"cin.layers.{layer}.weight"], p[f"cin.layers.{layer}.bias"]
            weight = weight.reshape(len(weight), len(maps), len(e))
            maps = np.array([
                sum(w[i, j] * maps[i] * e[j] for i in range(len(maps)) for j in range(len(e))) + b
                for w, b in zip(weight, bias, strict=True)
            ])  # fmt: skip
            sums.append(maps.sum(1))
        pooled.append(np.concatenate(sums))
    cin = np.array(pooled) @ p["cin_out.weight"][0]
    return lr(p, numbers, embeddings, first) + cin + dnn(p, numbers, embeddings, first)


def auto_int(p, numbers, embeddings, first):
    logits = []
    for x, e in zip(numbers, embeddings, strict=True):
        fields = np.concatenate([e, x[:, None] * p["number_embeddings_XD"]])
        for layer in range(2):
            query, key, value, residual = (
                fields @ p[f"layers.{layer}.{name}.weight"].T for name in ("query", "key", "value", "residual")
            )
            heads = [
                softmax(query[:, a : a + 3] @ key[:, a : a + 3].T) @ value[:, a : a + 3] for a in (0, 3)
            ]  # fmt: skip
            fields = np.maximum(np.concatenate(heads, 1) + residual, 0)
        logits.append(linear(p, "out", fields.reshape(1, -1))[0, 0])
    return np.array(logits)


def shared_bottom(p, numbers, embeddings, first):
    """[B, T] logits of the towers, each an MLP on the last layer of the shared one; [B] of a single tower."""
    shared = mlp(p, inputs(numbers, embeddings), name="bottom")
    numbers_of_towers = sorted({int(key.split(".")[1]) for key in p if key.startswith("towers.")})
    towers = [
        {f"mlp.{key.split('.', 2)[2]}": value for key, value in p.items() if key.startswith(f"towers.{t}.")}
        for t in numbers_of_towers
    ]
    return np.concatenate([mlp(tower, shared) for tower in towers], 1).squeeze(1 if len(towers) == 1 else ())
