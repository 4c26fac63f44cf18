// Elements and text: whatever a tool, a model or a user wrote enters the page here, as text and nothing else.

// Characters that cannot be seen or that turn the text around them, lone surrogates among them.
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\u{e0000}-\u{e007f}]|\r(?!\n)/gu;
const CONTROLS =
  "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");
const MARKED = 2000; // more such characters than this are written out without an element each

function mark(character) {
  const code = character.codePointAt(0);
  if (code === 0x7f) return "DEL";
  return CONTROLS[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** A text in which nothing is hidden, for titles and labels. */
export const plainText = (text) => String(text).replace(HIDDEN, (c) => `\u27e8${mark(c)}\u27e9`);

/** A text as nodes; hidden characters are shown by their names. */
export function visible(text) {
  const whole = String(text);
  const out = document.createDocumentFragment();
  const found = [...whole.matchAll(HIDDEN)];
  if (!found.length || found.length > MARKED) {
    out.append(document.createTextNode(found.length ? plainText(whole) : whole));
    return out;
  }
  let end = 0;
  for (const match of found) {
    out.append(document.createTextNode(whole.slice(end, match.index)), el("span", { class: "ctl" }, mark(match[0])));
    end = match.index + match[0].length;
  }
  out.append(document.createTextNode(whole.slice(end)));
  return out;
}

/** What somebody else wrote, kept from turning round what stands beside it. */
export const told = (text, kind = "") => el("bdi", { class: kind }, visible(text));

/** A text with every occurrence of what is `wanted` marked, whatever its case. */
export function marked(text, ...wanted) {
  const out = document.createDocumentFragment();
  const found = wanted.filter(Boolean).map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  let end = 0;
  for (const { 0: hit, index } of found ? [...text.matchAll(new RegExp(found, "giu"))].slice(0, 500) : []) {
    out.append(visible(text.slice(end, index)), el("mark", {}, visible(hit)));
    end = index + hit.length;
  }
  out.append(visible(text.slice(end)));
  return out;
}

/** An element with attributes, listeners (`onclick`) and children; texts become text nodes. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false || value === "") continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== ""));
  return node;
}

/** Put children in place of what was there. */
export const put = (node, ...children) =>
  node.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== ""));

/** Draw a part of the page anew only where what it shows is another: so the focus and a selection stay. */
export function drawn(node, shown, make) {
  const sign = JSON.stringify(shown);
  if (node.sign !== sign) put(node, make());
  node.sign = sign;
}

/** A button that copies a text, and says so. */
export function copier(label, text) {
  const button = el("button", { type: "button", class: "small" }, label);
  button.addEventListener("click", async () => {
    const whole = await text();
    if (!whole) return; // what was copied before stays
    let done = true;
    try {
      await navigator.clipboard.writeText(whole);
    } catch {
      done = byHand(whole);
    }
    button.textContent = done ? "Copied" : "Not allowed here";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function byHand(text) { // where the page is not served securely there is no clipboard but this
  const area = el("textarea", { class: "away", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
