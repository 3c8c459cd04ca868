"use strict";
// Shared by charts, the flame graph and tables. Text is always set as text: no code here makes HTML from data.
const page = { data: JSON.parse(document.getElementById("data").textContent) };

// Runs `draw` for the element with this id in the page and in each of its parts: in a part, once it is open.
page.each = (id, draw) => {
  for (const [part, data] of [["", page.data], ...Object.entries(page.data.parts || {})]) {
    const box = document.getElementById(part + id), closed = box?.closest("details:not([open])");
    if (closed) closed.addEventListener("toggle", () => draw(box, data), { once: true });
    else if (box) draw(box, data);
  }
};

// A link into a part opens it.
page.follow = () => {
  const part = document.getElementById(location.hash.slice(1));
  if (part?.matches("details")) { part.open = true; part.scrollIntoView(); }
};
addEventListener("hashchange", page.follow);
addEventListener("load", page.follow);

page.make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};

page.bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0, value = Math.abs(n);
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return (n < 0 ? "-" : "") + (unit === 0 ? value.toFixed(0) : value.toFixed(1)) + " " + units[unit];
};
page.count = (n) => Math.round(n).toLocaleString("en");
page.show = (n, unit) => (unit === "bytes" ? page.bytes(n) : page.count(n));
page.percent = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(part * 10 < whole ? 1 : 0) + " %" : "");
page.clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

// Times in the reader's time zone.
for (const time of document.querySelectorAll("time[data-ms]")) {
  const ms = Number(time.dataset.ms);
  if (ms > 0) {
    const date = new Date(ms);
    time.dateTime = date.toISOString();
    time.textContent = date.toLocaleDateString("sv") + " " + page.clock(ms);
  }
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Without permission to use the clipboard, as in a local file: the user copies the selected text.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}
