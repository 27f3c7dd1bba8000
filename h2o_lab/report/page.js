"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const first = [...body.rows];
  const key = (row, column) => row.cells[column].dataset.key;
  const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.title = "sort; a third click brings the first order back";
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = now === null ? "ascending" : now === "ascending" ? "descending" : null;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      const known = first.filter((row) => key(row, column) !== undefined);
      const missing = first.filter((row) => key(row, column) === undefined);
      known.sort((a, b) => compare(key(a, column), key(b, column)) * (next === "descending" ? -1 : 1));
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? [...known, ...missing] : first));
    });
  });
}
const unfold = () => {
  const cell = location.hash && document.getElementById(location.hash.slice(1));
  if (cell && cell.tagName === "DETAILS") cell.open = true;
};
addEventListener("hashchange", unfold);
unfold();
