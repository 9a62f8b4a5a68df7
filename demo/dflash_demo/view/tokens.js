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
  const [text, kind, , , q, name] = round.tokens[index];
  const token = document.createElement("span");
  token.className = kind === "own" ? "tok own" : "tok draft";
  if (index === 0) token.classList.add("first");
  if (text === "") token.classList.add("silent");
  if (text === "" && name) token.dataset.t = visible(name);
  if (typeof q === "number") token.style.setProperty("--q", Math.min(1, Math.max(0, q)).toFixed(3));
  token.dataset.r = round.n;
  token.dataset.i = index;
  putText(token, text);
  return token;
}

// A draft as it is struck through. Leading spaces become room (in characters): struck they would read as a dash.
function struckText(text, name) {
  const seen = text === "" && name ? visible(name) : text.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "·";
  const bare = seen.replace(/^ +(?=[^ ])/, "");
  return { bare, lead: seen.length - bare.length };
}

function rejectedElement(round, index) {
  const rejected = document.createElement("span");
  rejected.className = "rej";
  rejected.setAttribute("aria-hidden", "true");
  const [text, , , , name] = round.rejected[index];
  const { bare, lead } = struckText(text, name);
  rejected.dataset.t = bare;
  if (lead) rejected.style.setProperty("--lead", String(lead));
  rejected.dataset.r = round.n;
  rejected.dataset.x = index;
  return rejected;
}
