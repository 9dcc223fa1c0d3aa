// Adds buttons that save each figure as SVG or PNG and each table as CSV. The files are made here from the page's own content. Figures keep
// their light colours: the page's dark colours are rules of its style sheet, which a file does not contain.
const PNG_SCALE = 3; // pixels of a PNG per CSS pixel

function downloads(main) {
  const sliders = [...main.querySelectorAll(".slider")];
  for (const svg of main.querySelectorAll("figure > .card > svg[data-name]")) {
    const figure = svg.closest("figure"), label = svg.getAttribute("aria-label");
    // A slider replaces a still figure on the screen; its buttons save the still figure.
    const before = sliders.filter((slider) => slider.compareDocumentPosition(figure) & Node.DOCUMENT_POSITION_FOLLOWING);
    const place = figure.matches(".still") ? (before.at(-1) ?? figure) : figure;
    const bar = saver(place === figure ? "Save" : `Save “${label.split(":")[0]}”`);
    bar.append(
      button("SVG", label, () => save(svg.dataset.name + ".svg", new Blob([drawing(svg)], { type: "image/svg+xml" }))),
      button("PNG", label, async () => save(svg.dataset.name + ".png", await picture(svg))),
    );
    place.querySelector(".card").after(bar);
  }
  for (const table of main.querySelectorAll("table")) {
    const name = table.dataset.name ?? (slugged(table.caption?.textContent ?? "") || "table");
    const bar = saver("Save");
    bar.append(button("CSV", table.caption?.textContent ?? name, () => save(`${name}.csv`, new Blob([csv(table)], { type: "text/csv" }))));
    (table.closest(".scroll") ?? table).after(bar);
  }
}

const slugged = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");

function saver(text) {
  const bar = document.createElement("div");
  bar.className = "save";
  bar.append(text);
  return bar;
}

function button(form, label, click) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: form });
  made.setAttribute("aria-label", `${form}: ${label}`);
  made.addEventListener("click", click);
  return made;
}

function save(name, blob) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000); // the browser may still be reading
}

// Returns a figure as an SVG file. The page defines each glyph once; the file needs its own copies of those that other figures define.
function drawing(svg) {
  const copy = svg.cloneNode(true), own = new Set([...copy.querySelectorAll("[id]")].map((one) => one.id));
  const defs = document.createElementNS("http://www.w3.org/2000/svg", "defs");
  for (const use of copy.querySelectorAll("use")) {
    const id = (use.getAttribute("xlink:href") ?? use.getAttribute("href")).slice(1), glyph = document.getElementById(id);
    if (own.has(id) || !glyph) continue;
    own.add(id);
    defs.append(glyph.cloneNode(true));
  }
  copy.prepend(defs);
  return new XMLSerializer().serializeToString(copy);
}

// Returns a figure as a PNG file on white.
async function picture(svg) {
  const { width, height } = svg.viewBox.baseVal, scale = (PNG_SCALE * 4) / 3; // points to pixels
  const image = new Image(Math.round(width * scale), Math.round(height * scale));
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing(svg))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// Returns the visible lines of a table as CSV (RFC 4180). A heading above lines becomes their first column, a text below a line becomes
// the last column of this line.
function csv(table) {
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])].map(cellText), lines = [];
  let group = "";
  for (const row of [...table.tBodies].flatMap((body) => [...body.rows])) {
    if (row.hidden) continue;
    const cells = [...row.cells].map(cellText), last = lines.at(-1);
    if (row.matches(".theory")) group = cells[0].split("; ")[0];
    else if (row.matches(".below")) {
      if (last?.group === group) last.below = cells[0];
      else lines.push({ group, cells: heads.map(() => ""), below: cells[0] });
    } else {
      // A line without a name repeats the name above, and also the prediction and the source if these are empty.
      const name = Math.max(0, heads.indexOf("quantity")), repeats = last?.group === group && cells[name] === "";
      const repeated = (i) => repeats && cells[i] === "" && (i === name || /^(prediction|source)/.test(heads[i]));
      cells.forEach((_, i) => repeated(i) && (cells[i] = last.cells[i]));
      lines.push({ group, cells, below: "" });
    }
  }
  const grouped = lines.some((line) => line.group), noted = lines.some((line) => line.below);
  const whole = (group, cells, below) => [...(grouped ? [group] : []), ...cells, ...(noted ? [below] : [])];
  const head = whole("theory", heads.length ? heads : ["name", "value"], "note");
  const shown = [head, ...lines.map((line) => whole(line.group, line.cells, line.below))];
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return shown.map((line) => line.map(quoted).join(",") + "\r\n").join("");
}

// Returns the text of a cell: its parts, such as notes, separated by "; ", formulas as LaTeX, numbers as programs read them.
function cellText(cell) {
  const parts = [""];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) parts[parts.length - 1] += node.data;
    if (node.nodeType !== Node.ELEMENT_NODE || node.getAttribute("aria-hidden") === "true") return;
    const latex = node.localName === "math" && node.getAttribute("data-latex");
    if (latex) return void (parts[parts.length - 1] += `$${latex}$`);
    const apart = node.matches(".note, .interval, .badge, .question, br, li, p, div, summary, dt, dd");
    if (apart) parts.push("");
    node.childNodes.forEach(walk);
    if (apart) parts.push("");
  };
  cell.childNodes.forEach(walk);
  return parts.map(machine).filter(Boolean).join("; ");
}

// "−1,797" becomes "-1797", "1.20·10⁻¹³" becomes "1.20e-13", and "—", which stands for no number, an empty text.
function machine(text) {
  const plain = text.replace(/\s+/g, " ").trim().replaceAll("−", "-");
  const power = (_, digits) => "e" + [...digits].map((digit) => (digit === "⁻" ? "-" : "⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(digit))).join("");
  const number = /^-?\d{1,3}(,\d{3})+(\.\d+)?( \S+)?$/.test(plain) ? plain.replaceAll(",", "") : plain;
  return number === "—" ? "" : number.replace(/·10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)/g, power);
}
