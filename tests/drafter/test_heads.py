"""Heads against loops over slots in float64, and what they hand out beside the tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dflash_hf.drafter.heads.draft import Block, scaled_logits
from dflash_hf.drafter.heads.fly import FlyHead
from dflash_hf.drafter.heads.gru import GruHead
from dflash_hf.drafter.heads.markov import MarkovHead
from dflash_hf.drafter.heads.parallel import ParallelHead
from dflash_hf.drafter.heads.selector import SelectorHead

D, V, J, W = 6, 11, 5, 7
VOCABULARY = torch.tensor([9, 0, 3, 4, 10, 1, 6])  # of a reduced head, in no order


def tables(columns):
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(*shape, generator=generator) for name, shape in (
        ("hidden", (1, J, D)), ("head", (columns, D)), ("embedding", (V, D)),
    )}  # fmt: skip


def block(columns=V, first_slot=1, softcap=None):
    own = tables(columns)
    return Block(
        own["hidden"], first_slot, torch.tensor([[2]]), lambda states: states @ own["head"].T,
        lambda outputs: scaled_logits(outputs, 0.5, softcap), lambda ids: own["embedding"][ids], V,
        None if columns == V else VOCABULARY,
    )  # fmt: skip


def filled(head: nn.Module) -> nn.Module:
    torch.manual_seed(5)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    return head.requires_grad_(False)


def markov(kind, columns):
    return filled(MarkovHead(width=D, rank=3, kind=kind, tokens=V, columns=columns, confidence="both"))


def gru(columns, first_corrected=2):
    return filled(GruHead(width=D, hidden=4, bottleneck=3, columns=columns, first_corrected=first_corrected))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def slow_markov(head, own, backbone, token, row, state):
    w = {name: value.double() for name, value in head.state_dict().items()}
    e, h, r = w["markov_w1.weight"][token], own["hidden"][0, row].double(), 3
    if head.kind == "gated":
        e = sigmoid(w["gate_proj.weight"] @ torch.cat([h, e]) + w["gate_proj.bias"]) * e
    elif head.kind == "rnn":
        s = state.get("s", torch.zeros(r).double())
        z = w["joint_proj.weight"] @ torch.cat([s, e, h]) + w["joint_proj.bias"]
        g = sigmoid(z[:r])
        state["s"] = g * s + (1 - g) * torch.tanh(z[r : 2 * r])
        e = torch.tanh(z[2 * r :])
    return backbone(h) + w["markov_w2.weight"] @ e


def slow_gru(head, own, backbone, token, row, state):
    w = {name: value.double() for name, value in head.state_dict().items()}
    x, s, n = own["embedding"][token].double(), state.get("s", torch.zeros(4).double()), 4
    i, h = w["prefix_gru.weight_ih_l0"] @ x, w["prefix_gru.weight_hh_l0"] @ s
    reset, update = sigmoid(i[:n] + h[:n]), sigmoid(i[n : 2 * n] + h[n : 2 * n])
    state["s"] = (1 - update) * torch.tanh(i[2 * n :] + reset * h[2 * n :]) + update * s
    hidden = own["hidden"][0, row].double()
    if 1 + row < head.first_corrected:
        return backbone(hidden)
    inner = w["embed_proj.0.weight"] @ torch.cat([hidden, state["s"]])
    return backbone(hidden) + w["embed_proj.2.weight"] @ (inner * sigmoid(inner))


def slow_fly(head, own, backbone, token, row, state):
    w = {name: value.double() for name, value in head.state_dict().items()}

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean() + 1e-6) * weight

    h, e = own["hidden"][0, row].double(), own["embedding"][token].double()
    both = torch.cat([norm(h, w["hidden_norm.weight"]), norm(e, w["embed_norm.weight"])])
    gate = w["gate_proj.weight"] @ both
    return backbone(h + w["down_proj.weight"] @ (gate * sigmoid(gate) * (w["up_proj.weight"] @ both)))


CHAINS = {
    "markov vanilla": (lambda columns: markov("vanilla", columns), slow_markov),
    "markov gated": (lambda columns: markov("gated", columns), slow_markov),
    "markov rnn": (lambda columns: markov("rnn", columns), slow_markov),
    "gru": (gru, slow_gru),
    "gru from the first slot": (lambda columns: gru(columns, 0), slow_gru),
    "fly": (lambda columns: filled(FlyHead(width=D, inner=5, eps=1e-6)), slow_fly),
}


def slow_walk(head, logits_of, columns, softcap, tokens=None):
    """Logits [J, W] and tokens, slot by slot; along ``tokens`` if they are given."""
    own, state, token, rows, picked = tables(columns), {}, 2, [], []

    def backbone(hidden):
        logits = own["head"].double() @ hidden * 0.5
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    for row in range(J):
        rows.append(logits_of(head, own, backbone, token, row, state))
        column = int(rows[-1].argmax())
        picked.append(column if columns == V else int(VOCABULARY[column]))
        token = picked[-1] if tokens is None else tokens[row]
    return torch.stack(rows), picked


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("columns", [V, W], ids=["whole", "reduced"])
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_a_chain_is_its_slow_walk(name, columns, softcap):
    make, logits_of = CHAINS[name]
    head = make(columns)
    draft = head.propose(block(columns, softcap=softcap))
    logits, tokens = slow_walk(head, logits_of, columns, softcap)
    assert draft.tokens.tolist() == [tokens]
    torch.testing.assert_close(draft.logits[0].double(), logits, atol=1e-5, rtol=1e-5)
    assert draft.q is None
    again = head.propose(block(columns, softcap=softcap))
    assert torch.equal(again.logits, draft.logits), "nothing is carried from block to block"


def test_a_recurrent_markov_head_starts_at_slot_0_with_the_anchor():
    """Where slot 0 proposes nothing its state still counts, as in speculators' training; other kinds have none."""
    head, own = markov("rnn", V), tables(V)
    skipped = torch.randn(1, 1, D, generator=torch.Generator().manual_seed(9))
    draft = head.propose(replace(block(), skipped=skipped))
    own["hidden"], state, token = torch.cat([skipped, own["hidden"]], dim=1), {}, 2
    for row in range(1 + J):
        logits = slow_markov(head, own, lambda hidden: own["head"].double() @ hidden * 0.5, token, row, state)
        if row:
            torch.testing.assert_close(draft.logits[0, row - 1].double(), logits, atol=1e-5, rtol=1e-5)
            token = int(logits.argmax())
    assert not torch.allclose(draft.logits, head.propose(block()).logits, atol=1e-2)
    for kind in ("vanilla", "gated"):
        other = markov(kind, V)
        assert torch.equal(other.propose(replace(block(), skipped=skipped)).logits, other.propose(block()).logits)


def test_a_confidence_head_without_a_markov_head_leaves_the_logits_alone():
    head = filled(MarkovHead(width=D, rank=0, kind="vanilla", tokens=V, columns=V, confidence="hidden"))
    assert sorted(name for name, _ in head.named_parameters()) == ["confidence_proj.bias", "confidence_proj.weight"]
    own, draft = tables(V), head.propose(block())
    torch.testing.assert_close(draft.logits, own["hidden"] @ own["head"].T * 0.5)
    assert torch.equal(draft.tokens, ParallelHead().propose(block()).tokens)
    kept = torch.sigmoid(own["hidden"][0] @ head.confidence_proj.weight[0] + head.confidence_proj.bias[0]).cumprod(0)
    short = head.propose(replace(block(), least_confidence=float(kept[1])))
    assert short.tokens.shape[1] == 2


@pytest.mark.parametrize("columns", [V, W], ids=["whole", "reduced"])
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_a_drawn_chain_hands_out_the_q_given_what_was_drawn(name, columns):
    make, logits_of = CHAINS[name]
    head = make(columns)
    torch.manual_seed(1)
    draft = head.propose(block(columns), lambda logits: logits / 4.0)
    tokens = draft.tokens[0].tolist()
    logits, greedy = slow_walk(head, logits_of, columns, None, tokens)
    expected = torch.zeros(J, V).double()
    expected[:, torch.arange(V) if columns == V else VOCABULARY] = torch.softmax(logits / 4.0, dim=-1)
    torch.testing.assert_close(draft.q[0].double(), expected, atol=1e-6, rtol=1e-5)
    assert tokens != greedy, "the seed must leave the greedy path, or this shows nothing"
    torch.testing.assert_close(draft.probabilities(), draft.q[0].gather(1, draft.tokens[0][:, None])[:, 0])


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("columns", [V, W], ids=["whole", "reduced"])
def test_the_selector_walks_through_the_best_candidates(columns, drawn):
    head = filled(SelectorHead(width=D, rank=3, top_k=4, tokens=V))
    torch.manual_seed(2)
    draft = head.propose(block(columns, softcap=3.0), (lambda logits: logits / 0.7) if drawn else None)
    own, w = tables(columns), {name: value.double() for name, value in head.state_dict().items()}
    token, left_the_best = 2, False
    for row in range(J):
        hidden = own["hidden"][0, row].double()
        unary = 3.0 * torch.tanh(own["head"].double() @ hidden * 0.5 / 3.0)
        best = sorted(range(columns), key=lambda column: -float(unary[column]))[:4]
        ids = [column if columns == V else int(VOCABULARY[column]) for column in best]
        reading = w["predecessor_codebook.weight"][token] * (w["hidden_projection.weight"] @ hidden)
        scores = [
            float(unary[column] + reading @ w["successor_codebook.weight"][each])
            for column, each in zip(best, ids, strict=True)
        ]
        found = dict(zip(draft.vocabulary[0, row].tolist(), draft.logits[0, row].tolist(), strict=True))
        assert found == pytest.approx(dict(zip(ids, scores, strict=True)), abs=1e-5)
        token = int(draft.tokens[0, row])
        left_the_best |= token != ids[0]
        if drawn:
            chances = torch.softmax(torch.tensor(scores).double() / 0.7, dim=-1)
            assert draft.q[0, row].nonzero().flatten().tolist() == sorted(ids)
            assert draft.q[0, row, ids].double().tolist() == pytest.approx(chances.tolist(), abs=1e-6)
        else:
            assert token == ids[scores.index(max(scores))]
    assert left_the_best, "a selector that always takes the best candidate shows nothing"


@pytest.mark.parametrize("columns", [V, W], ids=["whole", "reduced"])
def test_the_parallel_head_takes_each_slots_best(columns):
    draft = ParallelHead().propose(block(columns))
    own = tables(columns)
    best = (own["hidden"][0] @ own["head"].T).argmax(dim=-1)
    assert torch.equal(draft.tokens[0], best if columns == V else VOCABULARY[best])
    expected = torch.softmax(own["hidden"][0] @ own["head"].T * 0.5, dim=-1).amax(dim=-1)
    torch.testing.assert_close(draft.probabilities(), expected)


def test_a_confidence_head_reads_the_token_before():
    hidden, before = torch.randn(1, J, D), torch.tensor([[2, 4, 4, 0, 1]])
    both = markov("vanilla", V)
    weight, bias = both.confidence_proj.weight[0], both.confidence_proj.bias[0]
    expected = hidden[0] @ weight[:D] + both.markov_w1.weight[before[0]] @ weight[D:] + bias
    torch.testing.assert_close(both.confidence(hidden, before)[0], expected)
    alone = filled(MarkovHead(width=D, rank=3, kind="vanilla", tokens=V, columns=V, confidence="hidden"))
    torch.testing.assert_close(alone.confidence(hidden, before), alone.confidence_proj(hidden)[..., 0])
    assert filled(MarkovHead(width=D, rank=3, kind="rnn", tokens=V, columns=V)).confidence(hidden, before) is None


@pytest.mark.parametrize("drawn", [False, True])
def test_a_draft_ends_where_little_is_expected_to_be_kept(drawn):
    head, warp = markov("vanilla", V), (lambda logits: logits) if drawn else None
    torch.manual_seed(4)
    whole = head.propose(block(), warp)
    before = torch.cat([torch.tensor([[2]]), whole.tokens[:, :-1]], dim=1)
    kept = torch.sigmoid(head.confidence(tables(V)["hidden"], before))[0].cumprod(dim=0)
    for count in range(1, J + 1):
        least = float(kept[count - 1]) * 0.999
        torch.manual_seed(4)
        draft = head.propose(replace(block(), least_confidence=least), warp)
        assert torch.equal(draft.tokens, whole.tokens[:, :count])
        assert torch.equal(draft.logits, whole.logits[:, :count])
        assert draft.q is None or torch.equal(draft.q, whole.q[:, :count])
    assert head.propose(replace(block(), least_confidence=1.0)).tokens.shape == (1, 1), "one token at the least"


def test_a_head_without_confidence_ends_no_draft():
    head = filled(MarkovHead(width=D, rank=3, kind="vanilla", tokens=V, columns=V))
    assert head.propose(replace(block(), least_confidence=1.0)).tokens.shape == (1, J)


@pytest.mark.parametrize("warp", [
    lambda logits: logits.masked_fill(torch.isin(torch.arange(V), VOCABULARY), -torch.inf),
    lambda logits: logits / 1e-38 / 1e-38,
], ids=["all suppressed", "not finite"])  # fmt: skip
@pytest.mark.parametrize("name", ["parallel", "selector", *sorted(CHAINS)])
def test_where_a_warper_leaves_nothing_the_drafters_own_q_is_drawn_from(name, warp):
    head = {
        "parallel": lambda: ParallelHead(),
        "selector": lambda: filled(SelectorHead(width=D, rank=3, top_k=3, tokens=V)),
    }.get(name, lambda: CHAINS[name][0](W))()  # fmt: skip
    draft = head.propose(block(W), warp)
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(1, J))
    assert (draft.probabilities() > 0).all()
