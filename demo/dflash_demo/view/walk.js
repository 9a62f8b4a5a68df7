// Which token is meant: by pointer, tap or key. Left and right walk tokens (rejected drafts too, where they are shown), up
// and down rounds, Home and End the ends, Escape closes. `context` gives the rounds, the view in front and the last round
// shown.

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
    const here = card.token && box.contains(card.token) ? card.token : null;
    const element = stepFrom(here, event.key, context.view().stops, context.last());
    if (!element) return;
    event.preventDefault();
    card.close();
    element.scrollIntoView({ block: "nearest" });
    spoken.textContent = spokenFacts(show(element, true));
  });
}

const WALKING = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

// The element a key leads to, or null when the key is not ours. `stops` gives those of a round, in reading order.
function stepFrom(here, key, stops, last) {
  if (last < 0 || !WALKING.includes(key)) return null;
  const nearest = (number, step) => {
    let found = [];
    for (let at = number; !found.length && at >= 0 && at <= last; at += step) found = stops(at);
    return found;
  };
  const ending = nearest(last, -1);
  const end = ending.findLast((stop) => stop.classList.contains("tok")) || ending.at(-1) || null;
  if (key === "Home") return nearest(0, 1)[0] || null;
  if (key === "End") return end;
  const number = here ? Number(here.dataset.r) : Infinity;
  if (number > last) return key === "ArrowRight" || key === "ArrowDown" ? nearest(0, 1)[0] || null : end;
  const around = stops(number);
  const place = around.indexOf(here);
  if (key === "ArrowUp") return nearest(number - 1, -1)[0] || around[0];
  if (key === "ArrowDown") return nearest(number + 1, 1)[0] || around[0];
  if (key === "ArrowLeft") return around[place - 1] || nearest(number - 1, -1).at(-1) || here;
  return around[place + 1] || nearest(number + 1, 1)[0] || here;
}
