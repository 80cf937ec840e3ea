"""What one training step must give, computed again from the files alone: an independent forward in double precision, and
AdamW on the dumped gradients. Standard library only.

    reference.py CONFIG.json TOKENS SEQ WINDOWS WEIGHTS LOSSES [GRADIENTS FINAL LR DECAY]

Window n is tokens n*TOKENS to n*TOKENS + TOKENS of the synthetic data with seed 1. Exits with 1 and says what differs.
"""
import json
import math
import struct
import sys

MASK = (1 << 64) - 1


def synthetic(i, vocabulary, seed=1):
    x = ((i + 1) * 0x9E3779B97F4A7C15 + seed) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    u = (x ^ x >> 31) >> 40
    return ((u * u >> 24) * u >> 24) * vocabulary >> 24


def read_tensors(path):
    with open(path, "rb") as f:
        head = json.loads(f.readline())
        assert head["format"] == "tensors-1"
        entries = [json.loads(f.readline()) for _ in range(head["count"])]
        tensors = {}
        for e in entries:
            f.seek(e["offset"])
            count = math.prod(e["shape"])
            tensors[e["name"]] = (e["shape"], struct.unpack(f"<{count}f", f.read(4 * count)))
    return tensors


class Model:
    def __init__(self, config, tensors):
        c, self.w = config, tensors
        kind = c["model_type"]
        self.layers, self.d, self.vocabulary = c["num_hidden_layers"], c["hidden_size"], c["vocab_size"]
        self.heads = c["num_attention_heads"]
        self.kv = c.get("num_key_value_heads", self.heads)
        self.dh = c.get("head_dim") or self.d // self.heads
        self.eps, self.theta = c["rms_norm_eps"], c["rope_theta"]
        self.experts = c.get("num_experts") or c.get("n_routed_experts")
        self.k = c["num_experts_per_tok"]
        self.normalise = c.get("norm_topk_prob", False)
        self.sigmoid = kind == "glm4_moe"
        self.scaling = c.get("routed_scaling_factor", 1.0)
        self.qk = {"olmoe": "full", "qwen3_moe": "head", "glm4_moe": "head"}[kind]
        self.head = "embed" if c.get("tie_word_embeddings") else "head"
        self.balance = 0.0

    def rows(self, name, first=0, count=None):
        shape, values = self.w[name]
        width = shape[-1]
        total = math.prod(shape) // width
        return [values[i * width:(i + 1) * width] for i in range(first, first + (count or total))]

    def linear(self, x, rows):
        return [sum(a * b for a, b in zip(x, row)) for row in rows]

    def norm(self, x, gain):
        r = 1 / math.sqrt(sum(v * v for v in x) / len(x) + self.eps)
        return [v * r * g for v, g in zip(x, gain)]

    def gain(self, name):
        return self.w[name][1]

    def rotate(self, head, position):
        half = self.dh // 2
        out = list(head)
        for i in range(half):
            angle = position * self.theta ** (-2 * i / self.dh)
            a, b = head[i], head[i + half]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def attention(self, layer, xs, sequence):
        p = f"blocks.{layer}.attn."
        wqkv, wo = self.rows(p + "wqkv"), self.rows(p + "wo")
        n, m, dh = self.heads, self.kv, self.dh
        out, cache = [], []
        for t, x in enumerate(xs):
            if t % sequence == 0:
                cache = []
            z = self.linear(self.norm(x, self.gain(p + "norm")), wqkv)
            q, k, v = z[:n * dh], z[n * dh:(n + m) * dh], z[(n + m) * dh:]
            if self.qk == "full":
                q, k = self.norm(q, self.gain(p + "q_norm")), self.norm(k, self.gain(p + "k_norm"))
            split = lambda y: [y[i:i + dh] for i in range(0, len(y), dh)]
            q, k, v = split(q), split(k), split(v)
            if self.qk == "head":
                q = [self.norm(h, self.gain(p + "q_norm")) for h in q]
                k = [self.norm(h, self.gain(p + "k_norm")) for h in k]
            q = [self.rotate(h, t % sequence) for h in q]
            cache.append(([self.rotate(h, t % sequence) for h in k], v))
            context = []
            for h in range(n):
                g = h // (n // m)
                scores = [sum(a * b for a, b in zip(q[h], keys[g])) / math.sqrt(dh) for keys, _ in cache]
                top = max(scores)
                weights = [math.exp(s - top) for s in scores]
                total = sum(weights)
                context += [sum(w * values[g][i] for w, (_, values) in zip(weights, cache)) / total for i in range(dh)]
            out.append([a + b for a, b in zip(x, self.linear(context, wo))])
        return out

    def swiglu(self, y, w13, w2):
        z = self.linear(y, w13)
        h = len(z) // 2
        return self.linear([g / (1 + math.exp(-g)) * u for g, u in zip(z[:h], z[h:])], w2)

    def mlp(self, layer, xs):
        p = f"blocks.{layer}."
        if p + "mlp.w13" in self.w:
            w13, w2 = self.rows(p + "mlp.w13"), self.rows(p + "mlp.w2")
            return [[a + b for a, b in zip(x, self.swiglu(self.norm(x, self.gain(p + "mlp.norm")), w13, w2))] for x in xs]
        wr = self.rows(p + "moe.wr")
        h2, d = self.w[p + "moe.w13"][0][1], self.d
        experts = [(self.rows(p + "moe.w13", e * h2, h2), self.rows(p + "moe.w2", e * d, d)) for e in range(self.experts)]
        shared = None
        if p + "shared.w13" in self.w:
            shared = self.rows(p + "shared.w13"), self.rows(p + "shared.w2")
        requested, mean, out = [0] * self.experts, [0.0] * self.experts, []
        for x in xs:
            y = self.norm(x, self.gain(p + "moe.norm"))
            logits = self.linear(y, wr)
            if self.sigmoid:
                scores = [1 / (1 + math.exp(-v)) for v in logits]
            else:
                top = max(logits)
                scores = [math.exp(v - top) for v in logits]
                scores = [s / sum(scores) for s in scores]
            chosen = sorted(range(self.experts), key=lambda e: (-scores[e], e))[:self.k]
            divisor = sum(scores[e] for e in chosen) if self.normalise else 1.0
            total = list(x)
            for e in chosen:
                requested[e] += 1
                weight = scores[e] / divisor * self.scaling
                total = [a + weight * b for a, b in zip(total, self.swiglu(y, *experts[e]))]
            if shared:
                total = [a + b for a, b in zip(total, self.swiglu(y, *shared))]
            share = sum(scores) if self.sigmoid else 1.0
            mean = [a + s / share / len(xs) for a, s in zip(mean, scores)]
            out.append(total)
        self.balance += self.experts * sum(r / (len(xs) * self.k) * m for r, m in zip(requested, mean))
        return out

    def loss(self, tokens, sequence):
        embed, head = self.rows("embed"), self.rows(self.head)
        xs = [list(embed[t]) for t in tokens[:-1]]
        for layer in range(self.layers):
            xs = self.mlp(layer, self.attention(layer, xs, sequence))
        total = 0.0
        for x, target in zip(xs, tokens[1:]):
            logits = self.linear(self.norm(x, self.gain("norm")), head)
            top = max(logits)
            total += top + math.log(sum(math.exp(v - top) for v in logits)) - logits[target]
        return total / len(xs)


def near(what, found, wanted, bound):
    if not abs(found - wanted) <= bound * max(abs(wanted), 1e-30):
        sys.exit(f"{what}: the run says {found!r}, the reference {wanted!r}")


def check_update(before, gradients, after, lr, decay, norm):
    """The first step: moments start at zero, clipping at 1."""
    square = sum(g * g for _, values in gradients.values() for g in values)
    near("gradient norm", norm, math.sqrt(square), 1e-5)
    clip = min(1.0, 1.0 / (norm + 1e-6))
    for name, (shape, masters) in before.items():
        rate = 0.0 if len(shape) == 1 else decay
        for i, (p, g, q) in enumerate(zip(masters, gradients[name][1], after[name][1])):
            g *= clip
            m, v = 0.1 * g, 0.05 * g * g
            wanted = p * (1 - lr * rate) - lr * (m / 0.1) / (math.sqrt(v / 0.05) + 1e-8)
            if abs(q - wanted) > 2e-7 * max(1.0, abs(p)) + 1e-4 * lr:
                sys.exit(f"{name}[{i}]: master {p!r}, gradient {g!r}: the run says {q!r}, AdamW {wanted!r}")


def main():
    config, tokens, sequence, windows, weights, losses = sys.argv[1:7]
    config, tokens, windows = json.load(open(config)), int(tokens), int(windows)
    before = read_tensors(weights)
    model = Model(config, before)
    first = next(list(map(float, line.split())) for line in open(losses) if line[0] != "#")
    ce = 0.0
    for n in range(windows):
        window = [synthetic(n * tokens + i, model.vocabulary) for i in range(tokens + 1)]
        ce += model.loss(window, int(sequence)) / windows
    near("cross-entropy", first[2], ce, 2e-6)
    near("balance loss", first[3], model.balance / windows, 2e-6)
    if len(sys.argv) > 7:
        gradients, final, lr, decay = sys.argv[7:11]
        check_update(before, read_tensors(gradients), read_tensors(final), float(lr), float(decay), first[5])


if __name__ == "__main__":
    main()
