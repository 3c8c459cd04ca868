"use strict";
// The flame graph: callers above the functions that they call, or, inverted, allocating functions above their callers.
// A bar is a button that zooms. Arrow keys go from bar to bar.
page.Flame = class {
  constructor(box, { frames, stacks }) {
    Object.assign(this, { frames, stacks, measure: "live", inverted: false, wanted: "" });
    const measures = { live: "live at the end", peak: "at the highest moment", growth: "grown in this time", churn: "allocated in all this time" };
    const sums = Object.keys(measures).filter((name) => stacks.some((stack) => stack[name] > 0));
    this.measure = sums.includes("live") ? "live" : sums[0] || "live";
    const option = (name) => page.make("option", { value: name, selected: name === this.measure }, measures[name]);
    const select = page.make("select", { onchange: () => { this.measure = select.value; this.build(); } }, ...sums.map(option));
    const turn = page.make("button", { type: "button", "aria-pressed": "false", onclick: () => {
      this.inverted = !this.inverted; turn.setAttribute("aria-pressed", this.inverted); this.build();
    } }, "Inverted");
    const reset = page.make("button", { type: "button", onclick: () => this.zoom(this.root) }, "Show all");
    const search = page.make("input", { type: "search", class: "grow", placeholder: "Search frames", "aria-label": "Search frames", oninput: () => {
      this.wanted = search.value.toLowerCase(); this.draw();
    } });
    this.said = page.make("div", { class: "reading", role: "status", "aria-live": "polite" });
    this.plot = page.make("div", { class: "fl", role: "tree", "aria-label": "Flame graph of memory by call stack" });
    box.append(page.make("div", { class: "bar" }, page.make("label", {}, "Bytes ", select), turn, reset, search), this.said, this.plot);
    this.plot.addEventListener("click", (event) => { const bar = event.target.closest("div[role=treeitem]"); if (bar) this.zoom(this.nodes[bar.dataset.n]); });
    this.plot.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["pointerover", "focusin"]) this.plot.addEventListener(kind, (event) => this.tell(event));
    new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.draw(); }).observe(this.plot);
    this.build();
  }

  build() {
    const node = (frame, parent) => ({ frame, parent, value: 0, depth: parent ? parent.depth + 1 : 0, children: new Map() });
    this.root = node(-1, null);
    for (const stack of this.stacks) {
      const value = stack[this.measure];
      if (!value) continue;
      let at = this.root;
      at.value += value;
      const path = this.inverted ? [...stack.frames].reverse() : stack.frames;
      for (const frame of path) {
        let next = at.children.get(frame);
        if (!next) { next = node(frame, at); at.children.set(frame, next); }
        next.value += value;
        at = next;
      }
    }
    this.zoomed = this.root;
    this.draw();
  }

  name(node) { return node.frame < 0 ? "all" : this.frames[node.frame]; }

  color(name) {
    // Functions of one file have one colour.
    const word = name.split(" ").pop().replace(/:\d+\)?$/, "");
    let hash = 7;
    for (const c of word) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
    return `hsl(${hash % 70 + (hash & 256 ? 0 : 170)} 62% ${68 + hash % 9}%)`;
  }

  zoom(node) { this.zoomed = node; this.draw(); this.plot.querySelector("[tabindex='0']")?.focus({ preventScroll: true }); }

  draw() {
    this.width = this.plot.clientWidth;
    if (!this.width) return;
    const above = [];
    for (let node = this.zoomed.parent; node; node = node.parent) above.unshift(node);
    this.nodes = [];
    let deepest = 0;
    const bars = [], least = 2 / this.width;
    const bar = (node, left, share) => {
      deepest = Math.max(deepest, node.depth);
      const name = this.name(node), number = this.nodes.push(node) - 1;
      const found = this.wanted && name.toLowerCase().includes(this.wanted);
      const said = `${name}: ${page.bytes(node.value)}, ${page.percent(node.value, this.root.value)}`;
      const element = page.make("div", {
        role: "treeitem", "data-n": number, "aria-level": node.depth + 1, "aria-label": said, title: said,
        "aria-expanded": node.children.size ? "true" : null, tabindex: node === this.zoomed ? "0" : "-1",
        class: (found ? "found " : "") + (node.depth < this.zoomed.depth ? "above" : ""),
      }, share * this.width > 24 ? name : "");
      element.style.left = (100 * left).toFixed(3) + "%";
      element.style.width = (100 * share).toFixed(3) + "%";
      element.style.top = 19 * node.depth + "px";
      element.style.background = node.frame < 0 ? "#c9d1d9" : this.color(name);
      node.bar = element;
      bars.push(element);
    };
    above.forEach((node) => bar(node, 0, 1));
    const level = [[this.zoomed, 0, 1]];
    while (level.length) {
      const [node, left, share] = level.pop();
      bar(node, left, share);
      let at = left;
      for (const child of [...node.children.values()].sort((a, b) => b.value - a.value)) {
        const part = share * child.value / node.value;
        if (part >= least) level.push([child, at, part]);
        at += part;
      }
    }
    this.plot.style.height = 19 * (deepest + 1) + "px";
    this.plot.replaceChildren(...bars);
    this.found();
  }

  // Share of all bytes beneath frames that match the search.
  found() {
    if (!this.wanted) { this.said.textContent = `${page.bytes(this.zoomed.value)}, ${page.percent(this.zoomed.value, this.root.value)} of all`; return; }
    let sum = 0;
    const nodes = [this.zoomed];
    while (nodes.length) {
      const node = nodes.pop();
      if (this.name(node).toLowerCase().includes(this.wanted)) sum += node.value;
      else nodes.push(...node.children.values());
    }
    this.said.textContent = `found: ${page.bytes(sum)}, ${page.percent(sum, this.root.value)} of all`;
  }

  tell(event) {
    const bar = event.target.closest("div[role=treeitem]");
    if (bar) this.said.textContent = bar.title;
  }

  key(event) {
    const bar = document.activeElement.closest("div[role=treeitem]");
    if (!bar) return;
    const node = this.nodes[bar.dataset.n];
    const beside = (step) => {
      const all = node.parent ? [...node.parent.children.values()].sort((a, b) => b.value - a.value).filter((other) => other.bar?.isConnected) : [node];
      return all[all.indexOf(node) + step];
    };
    const child = () => [...node.children.values()].sort((a, b) => b.value - a.value).find((other) => other.bar?.isConnected);
    const moves = { ArrowDown: child, ArrowUp: () => node.parent, ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), Home: () => this.zoomed };
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.zoom(node); return; }
    if (event.key === "Escape") { this.zoom(this.root); return; }
    if (!moves[event.key]) return;
    event.preventDefault();
    const to = moves[event.key]();
    if (to?.bar?.isConnected) {
      bar.tabIndex = -1; to.bar.tabIndex = 0; to.bar.focus();
    }
  }
};

page.each("flame", (box, { flame }) => { if (flame.stacks.length) new page.Flame(box, flame); });
