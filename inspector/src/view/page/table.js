"use strict";
// Tables that can be sorted by a column and searched.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.toLowerCase() : Number(cell.dataset.v);
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => { const x = key(a, column), y = key(b, column); return x < y ? -1 : x > y ? 1 : 0; };
      rows.sort((a, b) => (down ? order(b, a) : order(a, b)));
      body.append(...rows);
    };
    if (rows.length && rows[0].cells[column].classList.contains("n")) head.classList.add("n");
    head.replaceChildren(page.make("button", { type: "button", onclick: sort }, head.textContent));
  });
  if (rows.length > 8) {
    const said = page.make("span", { role: "status", class: "remark" });
    const filter = (event) => {
      const wanted = event.target.value.toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      said.textContent = wanted ? `${shown} of ${rows.length}` : "";
    };
    const input = page.make("input", { type: "search", class: "grow", placeholder: "Filter rows", "aria-label": "Filter rows", oninput: filter });
    (table.closest(".wide") || table).before(page.make("div", { class: "bar" }, input, said));
  }
}
