// The card of one token: where it stands and when it shows. Three ways to it: hover (goes with the pointer), focus and
// arrow keys, tap or click (stays until closed).

function makeCard(card, root) {
  const self = { token: null, held: false };

  self.close = () => {
    if (self.token) self.token.classList.remove("picked");
    self.token = null;
    self.held = false;
    card.hidden = true;
  };

  self.open = (token, facts, held) => {
    if (self.token === token && !card.hidden) {
      self.held = self.held || held;
      return;
    }
    if (self.token) self.token.classList.remove("picked");
    self.token = token;
    self.held = held;
    token.classList.add("picked");
    card.replaceChildren(...cardParts(facts));
    card.hidden = false;
    self.place();
  };

  // Under the token, above where there is no room; never outside the component's width.
  self.place = () => {
    if (!self.token) return;
    const frame = root.getBoundingClientRect();
    const boxes = self.token.getClientRects();
    if (!boxes.length) {
      self.close();
      return;
    }
    const spot = boxes[0];
    const left = Math.max(4, Math.min(spot.left - frame.left, root.clientWidth - card.offsetWidth - 4));
    const below = spot.bottom + 6 + card.offsetHeight <= window.innerHeight || spot.top < card.offsetHeight + 6;
    const top = below ? boxes[boxes.length - 1].bottom + 6 : spot.top - card.offsetHeight - 6;
    card.style.left = left + "px";
    card.style.top = top - frame.top + "px";
  };
  return self;
}

function line(name, ...children) {
  const element = document.createElement("div");
  element.className = name;
  element.append(...children.filter((child) => child !== ""));
  return element;
}

function cardParts(facts) {
  const title = document.createElement("bdi");
  title.className = "card-title";
  title.textContent = clipped(facts.title, 120);
  const kind = document.createElement("span");
  kind.className = "card-kind " + facts.mark;
  kind.textContent = facts.kind;
  const parts = [line("card-head", title, kind), line("card-place", [facts.round, facts.place].filter(Boolean).join(" · "))];
  if (facts.p !== undefined) parts.push(chanceLine("target p", "p", facts.p));
  if (facts.q !== undefined) parts.push(chanceLine("draft q", "q", facts.q));
  parts.push(line("card-small", facts.outcome), line("card-small", facts.times));
  if (facts.discarded.length) parts.push(discardedLine(facts.discarded));
  return parts;
}

function chanceLine(label, name, value) {
  const bar = document.createElement("i");
  bar.style.width = (typeof value === "number" ? value * 100 : 0).toFixed(1) + "%";
  const track = document.createElement("span");
  track.className = "card-track " + name;
  track.append(bar);
  const figure = document.createElement("b");
  figure.textContent = chanceText(value);
  const label_ = document.createElement("span");
  label_.textContent = label;
  return line("card-chance", label_, track, figure);
}

function discardedLine(discarded) {
  const list = line("card-discarded", "discarded ");
  for (const { text, name } of discarded) {
    const item = document.createElement("del");
    const { bare, lead } = struckText(text, name);
    item.textContent = clipped(bare, 60);
    item.style.setProperty("--lead", String(lead));
    list.append(item);
  }
  return list;
}
