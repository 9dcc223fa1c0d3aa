// The table of claims, sorted by any column and filtered by verdict, theory, source and words of the line or of the claim's card. The
// address of the page stores the order and the filters, so that a reader can share a view. Without this script the table shows all claims
// in the original order, without controls.
function claims(section) {
  const form = section.querySelector("form"), status = section.querySelector("[role=status]");
  const body = section.querySelector("tbody"), rows = [...body.rows], heads = [...section.querySelectorAll("thead th")];
  const plain = (text) => text.normalize("NFKC").toLowerCase().replaceAll("−", "-").replace(/\s+/g, " ").trim();
  const card = (row) => document.getElementById(row.querySelector("th a").hash.slice(1))?.textContent ?? "";
  const texts = rows.map((row) => plain(`${row.textContent} ${card(row)}`));
  const words = new Intl.Collator("en", { numeric: true });
  const mark = `#${section.id}?`;
  let column = -1, down = false; // -1: the original order

  function compare(a, b) {
    const [x, y] = [a, b].map((row) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim());
    if (x === "" || y === "") return (x === "") - (y === ""); // missing values come last in both directions
    const order = "number" in heads[column].dataset ? x - y : words.compare(x, y);
    return down ? -order : order;
  }

  function show() {
    const filters = ["verdict", "theory", "source"].filter((name) => form.elements[name].value);
    const parts = plain(form.elements.text.value).split(" ");
    const fits = (row, i) =>
      filters.every((name) => row.dataset[name] === form.elements[name].value) && parts.every((part) => texts[i].includes(part));
    rows.forEach((row, i) => (row.hidden = !fits(row, i)));
    body.append(...(column < 0 ? rows : [...rows].sort(compare))); // the sort is stable: equal rows keep the original order
    heads.forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const visible = rows.filter((row) => !row.hidden).length, all = `${rows.length} claim${rows.length === 1 ? "" : "s"}`;
    const order = column < 0 ? "" : `, sorted by ${heads[column].dataset.name}, ${down ? "descending" : "ascending"}`;
    const count = visible === rows.length ? all : `${visible} of ${all}`;
    status.textContent = visible === 0 ? `No claim matches. Press Clear to see all ${all}.` : count + order;
  }

  function remember() {
    const state = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if (column >= 0) state.set("sort", (down ? "-" : "") + heads[column].dataset.name);
    const query = String(state), address = query ? mark + query : location.hash.startsWith(mark) ? `#${section.id}` : location.hash;
    try {
      history.replaceState(null, "", address || location.pathname + location.search);
    } catch { } // browsers may forbid a page inside a frame to change its address
  }

  function recall() {
    if (!location.hash.startsWith(mark)) return;
    const state = new URLSearchParams(location.hash.slice(mark.length)), sort = state.get("sort") ?? "";
    for (const name of ["verdict", "theory", "source", "text"]) form.elements[name].value = state.get(name) ?? "";
    for (const choice of form.querySelectorAll("select")) if (choice.selectedIndex < 0) choice.value = ""; // the address names an option that this page lacks
    down = sort.startsWith("-");
    column = heads.findIndex((head) => head.dataset.name === sort.replace("-", ""));
    section.querySelector("details").open = true;
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
