"""The equations of the sequence models in plain torch, on input padded to the longest example: [B, L, E] with a mask
[B, L]. Parameters are given by name."""

import torch
from torch.nn import functional as F


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def dice(p, name, x, real, training):
    """`real`: mask of the rows of x [..., I] that are values. Statistics include only these."""
    mean, variance = p[f"{name}.running_mean"], p[f"{name}.running_var"]
    if training and real.sum() > 1:
        values = x[real]
        mean, variance = values.mean(0), values.var(0, unbiased=False)
    gate = torch.sigmoid((x - mean) / torch.sqrt(variance + 1e-9))
    return gate * x + p[f"{name}.alpha"] * (1 - gate) * x


def mlp(p, name, x, real=None, training=False, activation=torch.relu):
    at = 0
    while f"{name}.{at + 1}.alpha" in p or f"{name}.{at + 2}.weight" in p:
        x = linear(p, f"{name}.{at}", x)
        x = dice(p, f"{name}.{at + 1}", x, real, training) if f"{name}.{at + 1}.alpha" in p else activation(x)
        at += 2
    return linear(p, f"{name}.{at}", x)


def softmax(scores, real):
    """Softmax over the real positions of [..., L]; zeros where there are none."""
    return scores.masked_fill(~real, -torch.inf).softmax(-1).nan_to_num(0.0)


def unit(p, name, k, q, numbers, real, training, with_softmax):
    q = q.unsqueeze(1).expand_as(k)
    a = mlp(p, name, torch.cat([q, k, q - k, q * k, numbers], 2), real, training).squeeze(2)
    return softmax(a, real) if with_softmax else a * real


def mean(p, name, given, training):
    x, real = torch.cat([given["items"], given["numbers"]], 2), given["real"].unsqueeze(2)
    return (x * real).sum(1) / real.sum(1).clamp_min(1)


def din(p, name, given, training, with_softmax=True):
    k, real = given["items"], given["real"]
    a = unit(p, f"{name}.unit.mlp", k, given["candidate"], given["numbers"], real, training, with_softmax)
    return torch.einsum("bl,ble->be", a, k)


def gru(p, name, x, real, width):
    h, states = x.new_zeros(len(x), width), []
    for t in range(x.shape[1]):
        of_x = F.linear(x[:, t], p[f"{name}.weight_ih_l0"], p[f"{name}.bias_ih_l0"]).chunk(3, 1)
        r_h, z_h, c_h = F.linear(h, p[f"{name}.weight_hh_l0"], p[f"{name}.bias_hh_l0"]).chunk(3, 1)
        r, z = torch.sigmoid(of_x[0] + r_h), torch.sigmoid(of_x[1] + z_h)
        new = (1 - z) * torch.tanh(of_x[2] + r * c_h) + z * h
        h = torch.where(real[:, t : t + 1], new, h)
        states.append(h)
    return torch.stack(states, 1), h


def dien(p, name, given, training, gate="augru"):
    e, real, q = given["items"], given["real"], given["candidate"]
    width = e.shape[2]
    h, _ = gru(p, f"{name}.interest", torch.cat([e, given["numbers"]], 2), real, width)
    a = unit(p, f"{name}.unit.mlp", h, q, e[:, :, :0], real, training, True)
    if gate == "aigru":
        return gru(p, f"{name}.evolution", a.unsqueeze(2) * h, real, width)[1]
    state = e.new_zeros(len(e), width)
    for t in range(e.shape[1]):
        u_x, r_x, c_x = linear(p, f"{name}.evolution.of_input", h[:, t]).chunk(3, 1)
        u_h, r_h, c_h = linear(p, f"{name}.evolution.of_state", state).chunk(3, 1)
        u = a[:, t : t + 1] * (torch.sigmoid(u_x + u_h) if gate == "augru" else 1)
        new = (1 - u) * state + u * torch.tanh(c_x + torch.sigmoid(r_x + r_h) * c_h)
        state = torch.where(real[:, t : t + 1], new, state)
    return state


def attention(p, name, x, real, heads, causal):
    parts = linear(p, f"{name}.inputs", x).chunk(3, 2)
    out = []
    for q, k, v in zip(*(part.chunk(heads, 2) for part in parts), strict=True):
        seen = real.unsqueeze(1).expand(-1, x.shape[1], -1)
        if causal:
            seen = seen & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        out.append(softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5, seen) @ v)
    return linear(p, f"{name}.out", torch.cat(out, 2))


def norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])


def bst(p, name, given, training, pooling="target", heads=2, layers=1, layer_norm=False):
    """Pad at the front, so that the candidate comes last in every example."""
    e, real, q = given["items"], given["real"], given["candidate"]
    if f"{name}.of_numbers.weight" in p:
        e = e + linear(p, f"{name}.of_numbers", given["numbers"])
    lengths, longest = real.sum(1), real.shape[1]
    x = torch.stack([torch.cat([e.new_zeros(longest - n, e.shape[2]), e[b, :n], q[b : b + 1]])
                     for b, n in enumerate(lengths.tolist())])  # fmt: skip
    real = torch.arange(longest, -1, -1) <= lengths.unsqueeze(1)
    positions = p[f"{name}.positions"]
    ages = torch.arange(longest, -1, -1).clamp_max(len(positions) - 1)
    x = torch.cat([x, positions[ages].expand(len(x), -1, -1)], 2)
    for layer in range(layers):
        block = f"{name}.blocks.{layer}"
        x = x + attention(p, block, x, real, heads, causal=False)
        x = norm(p, f"{block}.norms.0", x) if layer_norm else x
        x = x + mlp(p, f"{block}.network", x, activation=F.leaky_relu)
        x = norm(p, f"{block}.norms.1", x) if layer_norm else x
    total = (x * real.unsqueeze(2)).sum(1)
    return {"target": x[:, -1], "sum": total, "mean": total / real.sum(1, keepdim=True)}[pooling]


def sas_rec(p, name, given, training, heads=1, layers=2):
    x, real, q = given["items"], given["real"], given["candidate"]
    if f"{name}.of_numbers.weight" in p:
        x = x + linear(p, f"{name}.of_numbers", given["numbers"])
    positions = p[f"{name}.positions"]
    ages = (real.sum(1, keepdim=True) - 1 - torch.arange(x.shape[1])).clamp(0, len(positions) - 1)
    x = x + positions[ages]
    for layer in range(layers):
        block = f"{name}.blocks.{layer}"
        x = x + attention(p, block, norm(p, f"{block}.norms.0", x), real, heads, causal=True)
        x = x + mlp(p, f"{block}.network", norm(p, f"{block}.norms.1", x))
    x = norm(p, f"{name}.norm", x)
    a = softmax(torch.einsum("be,ble->bl", q, x) / x.shape[2] ** 0.5, real)
    u = torch.einsum("bl,ble->be", a, x)
    return torch.cat([u, u * q], 1)


def logits(pool, p, numbers, embeddings, padded, training=False, **args):
    """Logits [B] from numbers [B, X], embeddings [B, F, D] and, for each sequence, `items` [B, L, E], `numbers` [B, L,
    N], `candidate` [B, E] and `real` [B, L]."""
    pooled = [pool(p, f"pools.{n}", given, training, **args) for n, given in enumerate(padded)]
    return mlp(p, "mlp", torch.cat([embeddings.flatten(1), numbers, *pooled], 1)).squeeze(1)
