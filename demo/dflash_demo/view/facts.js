// What the card says of a token or a rejected draft. In: a round and {index} or {rejected}. Out: plain strings and
// numbers; the card draws them.

function factsOf(round, pick) {
  const facts = pick.rejected === undefined ? tokenFacts(round, pick.index) : rejectedFacts(round, pick.rejected);
  facts.round = round.n === 0 ? "prefill" : "round " + round.n;
  facts.outcome = rowCounts(round).said;
  facts.times = timeFacts(round);
  facts.discarded = round.rejected.map(([text, , , , name]) => ({ text, name }));
  return facts;
}

function tokenFacts(round, index) {
  const [text, kind, slot, p, q, name] = round.tokens[index];
  const own = kind === "own";
  let place = "slot " + slot + " of " + round.drafted;
  if (own) place = round.n === 0 || !round.drafted ? "" : "slot " + slot + ", after the accepted drafts";
  return {
    title: spelled(text, name),
    kind: own ? "target’s own token" : "accepted draft",
    mark: own ? "own" : "draft",
    place,
    p,
    q: own ? undefined : q,
  };
}

function rejectedFacts(round, index) {
  const [text, slot, p, q, name] = round.rejected[index];
  const first = slot === round.accepted + 1;
  return {
    title: spelled(text, name),
    kind: first ? "rejected draft" : "rejected: behind the first miss",
    mark: "rejected",
    place: "slot " + slot + " of " + round.drafted,
    p,
    q,
  };
}

function timeFacts(round) {
  const [drafter, head, target] = round.ms;
  if (round.n === 0) return "prefill " + fixed(target, 1) + " ms";
  if (!round.drafted) return "target " + fixed(target, 1) + " ms";
  return "draft " + fixed(drafter + head, 1) + " ms · verify " + fixed(target, 1) + " ms";
}

// The same as one spoken line, for readers who walk the tokens by key.
function spokenFacts(facts) {
  const parts = [facts.title, facts.kind, facts.round, facts.place];
  if (typeof facts.p === "number") parts.push("target p " + chanceText(facts.p));
  if (typeof facts.q === "number") parts.push("draft q " + chanceText(facts.q));
  parts.push(facts.outcome, facts.times);
  if (facts.discarded.length) parts.push("discarded: " + facts.discarded.map(({ text, name }) => spelled(text, name)).join(" "));
  return parts.filter(Boolean).join(", ");
}
