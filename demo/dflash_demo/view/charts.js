// Small bars. Elements are made once per block size and then only change height and label, so nothing moves.

function setBars(list, columns) {
  while (list.children.length > columns.length) list.lastElementChild.remove();
  while (list.children.length < columns.length) list.append(barElement());
  columns.forEach((column, index) => {
    const item = list.children[index];
    const [value, well, name, unseen] = item.children;
    setText(value, column.value);
    setText(name, column.name);
    setText(unseen, column.said);
    if (item.title !== column.said) item.title = column.said;
    setHeight(well.children[0], column.fill);
    setHeight(well.children[1], column.line);
    item.classList.toggle("full", Boolean(column.full));
  });
}

function barElement() {
  const item = document.createElement("li");
  const well = document.createElement("span");
  well.className = "well";
  const fill = document.createElement("i");
  fill.className = "bar-fill";
  const line_ = document.createElement("i");
  line_.className = "bar-line";
  well.append(fill, line_);
  const value = document.createElement("span");
  value.className = "bar-value";
  const name = document.createElement("span");
  name.className = "bar-name";
  const unseen = document.createElement("span");
  unseen.className = "unseen";
  for (const part of [value, well, name]) part.setAttribute("aria-hidden", "true");
  item.append(value, well, name, unseen);
  return item;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// null: no such mark in this chart.
function setHeight(element, share) {
  const height = share === null || share === undefined ? "" : (share * 100).toFixed(1) + "%";
  if (element.style.height !== height) element.style.height = height;
  element.hidden = height === "";
}

function histogramColumns(figures, block) {
  const length = Math.max(block, figures.histogram.length);
  const most = Math.max(1, ...figures.histogram);
  return Array.from({ length }, (_, accepted) => {
    const rounds = figures.histogram[accepted] || 0;
    const share = percent(figures.steps ? rounds / figures.steps : null);
    return {
      name: String(accepted),
      value: rounds ? String(rounds) : "",
      fill: rounds / most,
      line: null,
      full: accepted === length - 1,
      said: accepted + " accepted: " + counted(rounds, "round", "rounds") + " (" + share + ")",
    };
  });
}

function positionColumns(figures, block) {
  const length = Math.max(block - 1, figures.byPosition.length);
  return Array.from({ length }, (_, place) => {
    const all = figures.byPosition[place] ?? null;
    const there = figures.conditional[place] ?? null;
    const reached = figures.reached[place] || 0;
    return {
      name: String(place + 1),
      value: there === null ? "" : String(Math.round(there * 100)),
      fill: all === null ? 0 : all,
      line: there,
      said:
        "position " + (place + 1) + ": accepted in " + percent(there) + " of the " + reached +
        " rounds that got there, " + percent(all) + " of all rounds",
    };
  });
}

// Mean milliseconds of a round as one divided bar.
function setSplit(bar, key, times) {
  const whole = times ? times.reduce((sum, value) => sum + value, 0) : 0;
  (times || [0, 0, 0, 0]).forEach((value, index) => {
    bar.children[index].style.flexGrow = whole ? (value / whole).toFixed(4) : "0";
    setText(key.children[index].querySelector("b"), times ? value.toFixed(1) : "–");
  });
}

// One column a round, accepted below and the target's own above, in a drawing as wide as there are rounds.
function drawStrip(parts, rounds, block, last) {
  const height = Math.max(2, block);
  let drafts = "";
  let owns = "";
  for (const round of rounds) {
    const own = round.tokens.length - round.accepted;
    const x = round.n + 0.08;
    if (round.accepted) drafts += "M" + x + " " + height + "h.84v-" + round.accepted + "h-.84z";
    if (own > 0) owns += "M" + x + " " + (height - round.accepted) + "h.84v-" + own + "h-.84z";
  }
  const width = Math.max(1, rounds.length);
  parts.strip.setAttribute("viewBox", "0 0 " + width + " " + height);
  parts.draft.setAttribute("d", drafts);
  parts.own.setAttribute("d", owns);
  parts.veil.setAttribute("x", String(last + 1));
  parts.veil.setAttribute("width", String(Math.max(0, width - last - 1)));
  parts.veil.setAttribute("height", String(height));
}
