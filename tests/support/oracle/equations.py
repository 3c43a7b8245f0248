"""The models' equations from the papers, in plain NumPy with float64: one function per model, with parameters by
name."""

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
    """Multi-layer perceptron with layers in the order of the parameters' numbers. The last layer is linear if it has
    one output."""
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
    """[B, T] logits of the towers, each an MLP on top of the shared MLP; [B] with a single tower."""
    shared = mlp(p, inputs(numbers, embeddings), name="bottom")
    numbers_of_towers = sorted({int(key.split(".")[1]) for key in p if key.startswith("towers.")})
    towers = [
        {f"mlp.{key.split('.', 2)[2]}": value for key, value in p.items() if key.startswith(f"towers.{t}.")}
        for t in numbers_of_towers
    ]
    return np.concatenate([mlp(tower, shared) for tower in towers], 1).squeeze(1 if len(towers) == 1 else ())


def part(p, name):
    """Parameters with this prefix, by name without the prefix."""
    return {key.removeprefix(f"{name}."): value for key, value in p.items() if key.startswith(f"{name}.")}


def stack(p, name, x):
    """An MLP whose parameter names start with `name`."""
    return mlp({f"mlp.{key}": value for key, value in part(p, name).items()}, x)


def norm(x, scale=1.0, bias=0.0):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def masked_cross(p, name, x0, exponential):
    x = x0
    for layer, bias in enumerate(p[f"{name}.bias_KI"]):
        c = x @ p[f"{name}.layers.{layer}.weight"].T
        masked = c * np.maximum(norm(c, *(p[f"{name}.norms.{layer}.{what}"] for what in ("weight", "bias"))), 0)
        x = (x if exponential else x0) * (np.concatenate([c, masked])[: len(x)] + bias) + x
    return linear(p, f"{name}.out", x)[0]


def fcn(p, numbers, embeddings, first):
    logits = []
    for x, e in zip(numbers, embeddings, strict=True):
        num_heads = e.size // (p["exponential.bias_KI"].shape[1] - len(x))
        heads = [
            np.concatenate([*(half.ravel() for half in np.array_split(head, 2, 1)), x])
            for head in np.split(e, num_heads, 1)
        ]
        both = [masked_cross(p, "exponential", x0, True) + masked_cross(p, "linear", x0, False) for x0 in heads]
        logits.append(np.mean(both) / 2)
    return np.array(logits)


def final_block(p, name, x, residual="concat"):
    for layer in range(2):
        a, b = np.split(linear(p, f"{name}.{2 * layer}.linear", x), 2, 1)
        x = np.concatenate([a, a * b], 1) if residual == "concat" else a + a * b
        batch_norm = part(p, f"{name}.{2 * layer + 1}")
        x = (x - batch_norm["running_mean"]) / np.sqrt(batch_norm["running_var"] + 1e-5)
        x = x * batch_norm["weight"] + batch_norm["bias"]
    return linear(p, f"{name}.4", x)[:, 0]


def final_net(p, numbers, embeddings, first):
    plain = inputs(numbers, embeddings)
    gates = np.array([[p["gate_FF"] @ e_b[:, d] + p["gate_bias_F"] for d in range(e_b.shape[1])] for e_b in embeddings])
    gated = (embeddings * gates.transpose(0, 2, 1)).reshape(len(plain), -1)
    first_block = final_block(p, "blocks.0", np.concatenate([plain, gated], 1))
    return (first_block + final_block(p, "blocks.1", plain)) / 2


def final_net_of_one_block(p, numbers, embeddings, first):
    return final_block(p, "blocks.0", inputs(numbers, embeddings), "sum")


def mask_block(p, name, e, x):
    mask = linear(p, f"{name}.mask.2", np.maximum(linear(p, f"{name}.mask.0", e), 0))
    after = part(p, f"{name}.after.0")
    return np.maximum(norm((mask * x) @ p[f"{name}.layer.weight"].T, after["weight"], after["bias"]), 0)


def mask_net(p, numbers, embeddings, first):
    e = inputs(numbers, embeddings)
    x = inputs(numbers, norm(embeddings, p["norm_scale_FD"], p["norm_bias_FD"]))
    if "out.2.weight" in p:
        return stack(p, "out", np.concatenate([mask_block(p, f"blocks.{n}", e, x) for n in range(2)], 1))[:, 0]
    for n in range(2):
        x = mask_block(p, f"blocks.{n}", e, x)
    return linear(p, "out.0", x)[:, 0]


def mixture(p, name, x, experts):
    return sum(gate * expert.T for gate, expert in zip(softmax(linear(p, name, x)).T, experts, strict=True)).T


def mmoe(p, numbers, embeddings, first):
    x = inputs(numbers, embeddings)
    experts = [stack(p, f"experts.experts.{n}", x) for n in range(3)]
    towers = [stack(p, f"towers.{t}", mixture(p, f"gates.{t}.linear", x, experts)) for t in range(2)]
    return np.concatenate(towers, 1)


def ple(p, numbers, embeddings, first):
    one = another = shared = inputs(numbers, embeddings)
    for level in ("levels.0", "levels.1"):
        experts = [
            [np.maximum(linear(p, f"{level}.experts.{of}.experts.{n}.0", x), 0) for n in range(size)]
            for of, x, size in ((0, one, 2), (1, another, 2), (2, shared, 3))
        ]
        if level == "levels.0":
            shared = mixture(p, f"{level}.gates.2.linear", shared, [*experts[0], *experts[1], *experts[2]])
        one = mixture(p, f"{level}.gates.0.linear", one, experts[0] + experts[2])
        another = mixture(p, f"{level}.gates.1.linear", another, experts[1] + experts[2])
    return np.concatenate([stack(p, "towers.0", one), stack(p, "towers.1", another)], 1)


def esmm(p, numbers, embeddings, first):
    """The second logit is that of the product of both towers' probabilities."""
    click, after = (stack(p, f"towers.{t}", inputs(numbers, embeddings))[:, 0] for t in range(2))
    both = sigmoid(click) * sigmoid(after)
    return np.stack([click, np.log(both / (1 - both))], 1)


def aitm(p, numbers, embeddings, first):
    first, second = (stack(p, f"bottoms.{t}", inputs(numbers, embeddings)) for t in range(2))
    logits = []
    for before, own in zip(linear(p, "hands_on.0", first), second, strict=True):
        both = np.array([before, own])
        value, key, query = (linear(p, name, both) for name in ("value", "key", "query"))
        logits.append(stack(p, "towers.1", (softmax((key * query).sum(1) / math.sqrt(len(own))) @ value)[None])[0])
    return np.concatenate([stack(p, "towers.0", first), np.array(logits)], 1)
