// The flowing text: each round a span of token spans. What was rejected stands before the target's own token, which took
// its place: a raised count, or the struck drafts themselves.

function makeTextView(box, list, end) {
  const view = makeView(box, list, drawTextRound, rejectInText);
  // A newline at the very end has no line of its own, on the page or in a selection, without a break after it.
  view.settle = (last) => {
    const shown = view.elements.slice(0, last + 1).findLast((element) => element.textContent);
    end.hidden = !shown || !shown.textContent.endsWith("\n");
  };
  return view;
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
