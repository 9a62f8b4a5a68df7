// The flowing text: each round a span of token spans. What was rejected stands before the target's own token, which took
// its place: a raised count, or the struck drafts themselves.

function makeTextView(box, list) {
  return makeView(box, list, drawTextRound, rejectInText);
}

function drawTextRound(round) {
  const element = document.createElement("span");
  element.className = "round";
  element.dataset.n = round.n;
  round.tokens.forEach((_, index) => element.append(tokenElement(round, index)));
  if (round.rejected.length) {
    const count = document.createElement("span");
    count.className = "count";
    count.dataset.t = round.rejected.length;
    count.setAttribute("aria-hidden", "true");
    element.insertBefore(count, ownToken(element));
  }
  return element;
}

function rejectInText(element, round) {
  const own = ownToken(element);
  round.rejected.forEach((_, index) => element.insertBefore(rejectedElement(round, index), own));
}

// null where the text ended on a draft.
function ownToken(element) {
  return element.querySelector(".own");
}
