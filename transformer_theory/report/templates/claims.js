// The table of claims: sorted by any column, filtered by verdict, theory, source and words. What is chosen stands in the address, so that a
// view can be sent to somebody. Without this script the table is whole, in its own order, and has no controls.
function claims(section) {
  const form = section.querySelector("form"), status = section.querySelector("[role=status]");
  const body = section.querySelector("tbody"), rows = [...body.rows], heads = [...section.querySelectorAll("thead th")];
  const plain = (text) => text.normalize("NFKC").toLowerCase().replaceAll("−", "-").replace(/\s+/g, " ").trim();
  const texts = rows.map((row) => plain(row.textContent));
  const words = new Intl.Collator("en", { numeric: true });
  const mark = `#${section.id}?`;
  let column = -1, down = false; // -1: the table's own order

  function compare(a, b) {
    const [x, y] = [a, b].map((row) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim());
    if (x === "" || y === "") return (x === "") - (y === ""); // what was not measured stays last, whichever way
    const order = "number" in heads[column].dataset ? x - y : words.compare(x, y);
    return down ? -order : order;
  }

  function show() {
    const chosen = ["verdict", "theory", "source"].filter((name) => form.elements[name].value);
    const parts = plain(form.elements.text.value).split(" ");
    const fits = (row, i) =>
      chosen.every((name) => row.dataset[name] === form.elements[name].value) && parts.every((part) => texts[i].includes(part));
    rows.forEach((row, i) => (row.hidden = !fits(row, i)));
    body.append(...(column < 0 ? rows : [...rows].sort(compare))); // rows that are equal keep the table's own order
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const shown = rows.filter((row) => !row.hidden).length, all = `${rows.length} claim${rows.length === 1 ? "" : "s"}`;
    const order = column < 0 ? "" : `, sorted by ${heads[column].dataset.name}, ${down ? "descending" : "ascending"}`;
    const count = shown === rows.length ? all : `${shown} of ${all}`;
    status.textContent = shown === 0 ? `No claim fits. Clear to see all ${all}.` : count + order;
  }

  function remember() {
    const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if (column >= 0) state.set("sort", (down ? "-" : "") + heads[column].dataset.name);
    const said = String(state), address = said ? mark + said : location.hash.startsWith(mark) ? `#${section.id}` : location.hash;
    try {
      history.replaceState(null, "", address || location.pathname + location.search);
    } catch { } // a page inside another may not change its address
  }

  function recall() {
    if (!location.hash.startsWith(mark)) return;
    const state = new URLSearchParams(location.hash.slice(mark.length)), sort = state.get("sort") ?? "";
    for (const name of ["verdict", "theory", "source", "text"]) form.elements[name].value = state.get(name) ?? "";
    for (const choice of form.querySelectorAll("select")) if (choice.selectedIndex < 0) choice.value = ""; // of another page
    down = sort.startsWith("-");
    column = heads.findIndex((head) => head.dataset.name === sort.replace("-", ""));
    section.scrollIntoView();
  }

  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      down = column === i && !down;
      column = i;
      show();
      remember();
    });
    head.append(button);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => (show(), remember()));
  form.querySelector("button").addEventListener("click", () => (form.reset(), (column = -1), show(), remember()));
  addEventListener("hashchange", () => (recall(), show()));
  form.hidden = false;
  recall();
  show();
}
