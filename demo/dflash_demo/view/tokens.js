// One token or one rejected draft as an element. Text goes in as text nodes; a rejected draft is drawn from an attribute
// by the style sheet, so that it is in no selection and in no copied text.

// Newlines get an element of their own: the style sheet draws a return sign before them.
function putText(element, text) {
  const lines = text.split("\n");
  lines.forEach((line, index) => {
    if (index) {
      const newline = document.createElement("span");
      newline.className = "nl";
      newline.textContent = "\n";
      element.append(newline);
    }
    if (line) element.append(line);
  });
}

function tokenElement(round, index) {
  const [text, kind, , , q] = round.tokens[index];
  const token = document.createElement("span");
  token.className = kind === "own" ? "tok own" : "tok draft";
  if (index === 0) token.classList.add("first");
  if (text === "") token.classList.add("silent");
  if (typeof q === "number") token.style.setProperty("--q", Math.min(1, Math.max(0, q)).toFixed(3));
  token.dataset.r = round.n;
  token.dataset.i = index;
  putText(token, text);
  return token;
}

function rejectedElement(round, index) {
  const rejected = document.createElement("span");
  rejected.className = "rej";
  rejected.setAttribute("aria-hidden", "true");
  const shown = round.rejected[index][0].replaceAll("\n", "↵").replaceAll("\t", "⇥") || "·";
  const bare = shown.replace(/^ +(?=[^ ])/, "");
  rejected.dataset.t = bare;
  // Leading spaces become room: struck through they would read as a dash.
  if (bare.length < shown.length) rejected.style.setProperty("--lead", String(shown.length - bare.length));
  rejected.dataset.r = round.n;
  rejected.dataset.x = index;
  return rejected;
}
