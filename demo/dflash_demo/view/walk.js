// Which token is meant: by pointer, tap or key. Left and right walk tokens, up and down rounds, Home and End the ends,
// Escape closes. `context` gives the rounds, the view in front and the last round shown.

function watchTokens(box, card, spoken, context) {
  const pickOf = (element) => ({
    number: Number(element.dataset.r),
    index: element.dataset.i === undefined ? 0 : Number(element.dataset.i),
    rejected: element.dataset.x === undefined ? undefined : Number(element.dataset.x),
  });
  const show = (element, held) => {
    const pick = pickOf(element);
    const facts = factsOf(context.rounds()[pick.number], pick);
    card.open(element, facts, held);
    return facts;
  };

  box.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || event.buttons) return;
    const element = event.target.closest("[data-r]");
    if (card.held) return;
    if (element) show(element, false);
    else card.close();
  });
  box.addEventListener("pointerleave", () => {
    if (!card.held) card.close();
  });
  box.addEventListener("click", (event) => {
    const element = event.target.closest("[data-r]");
    const selecting = !window.getSelection().isCollapsed;
    const again = element && element === card.token && card.held;
    card.close();
    if (element && !selecting && !again) show(element, true);
  });
  box.addEventListener("scroll", () => {
    if (card.held) card.place();
    else card.close();
  });
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (event.key === "Escape") {
      card.close();
      return;
    }
    const here = card.token && box.contains(card.token) ? pickOf(card.token) : null;
    const next = stepFrom(here, event.key, context.rounds(), context.last());
    if (!next) return;
    event.preventDefault();
    const element = context.view().find(next.number, next.index);
    if (!element) return;
    card.close();
    element.scrollIntoView({ block: "nearest" });
    spoken.textContent = spokenFacts(show(element, true));
  });
}

// The token a key leads to, or null when the key is not ours. Rounds have at least one token.
function stepFrom(here, key, rounds, last) {
  if (last < 0) return null;
  const lastOf = (number) => rounds[number].tokens.length - 1;
  const end = { number: last, index: lastOf(last) };
  if (key === "Home") return { number: 0, index: 0 };
  if (key === "End") return end;
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(key)) return null;
  if (!here || here.number > last) return key === "ArrowRight" || key === "ArrowDown" ? { number: 0, index: 0 } : end;
  const { number, index } = here;
  if (key === "ArrowUp") return { number: Math.max(0, number - 1), index: 0 };
  if (key === "ArrowDown") return { number: Math.min(last, number + 1), index: 0 };
  if (key === "ArrowLeft") {
    if (index > 0) return { number, index: index - 1 };
    return number > 0 ? { number: number - 1, index: lastOf(number - 1) } : { number, index };
  }
  if (index < lastOf(number)) return { number, index: index + 1 };
  return number < last ? { number: number + 1, index: 0 } : { number, index };
}
