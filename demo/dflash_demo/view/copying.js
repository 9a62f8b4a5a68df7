// Copying: select-all inside the text takes the text and nothing else, and what lands on the clipboard is exact.

function watchCopying(box, text, button, exactText) {
  box.addEventListener("keydown", (event) => {
    if (event.key !== "a" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    selectAll(text);
  });
  box.addEventListener("copy", (event) => {
    const selection = window.getSelection();
    if (selection.isCollapsed) return;
    event.clipboardData.setData("text/plain", selection.toString());
    event.preventDefault();
  });
  let back = 0;
  button.addEventListener("click", async () => {
    button.textContent = (await putOnClipboard(exactText())) ? "Copied" : "Press Ctrl+C";
    clearTimeout(back);
    back = setTimeout(() => {
      button.textContent = "Copy text";
    }, 1600);
  });
}

function selectAll(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

// The clipboard's own interface exists on secure pages only; elsewhere a hidden field is copied the old way.
async function putOnClipboard(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (refused) {
      console.info("clipboard refused, copying from a field:", refused.name);
    }
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.style.cssText = "position:fixed;opacity:0";
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
