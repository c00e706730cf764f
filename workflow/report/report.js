// The controls of the page: they choose variants for the figures and the table, and link a point to its row. Without
// scripts the page shows the same figures and the whole table.
(() => {
  "use strict";
  const { variants, figures } = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("choose"), table = document.getElementById("table"), body = table.tBodies[0];
  const rows = new Map([...body.rows].map(row => [row.id, row]));
  const views = {};
  document.documentElement.classList.add("scripted");

  const number = text => (text === "" ? null : Number(text));
  const least = (value, bound) => bound === null || (value !== undefined && value >= bound);
  const most = (value, bound) => bound === null || (value !== undefined && value <= bound);

  function wanted(variant) {
    const asked = Object.fromEntries(new FormData(form));
    const words = asked.words.toLowerCase().split(/\s+/).filter(Boolean);
    const text = rows.get(variant.id).textContent.toLowerCase();
    if (variant.model !== asked.model || !words.every(word => text.includes(word))) return false;
    if (variant.selector === "none") return true;
    return ["calibration", "selector", "repaired_by", "removed"].every(key => !asked[key] || String(variant[key]) === asked[key])
      && least(variant.kept, number(asked.keep)) && most(variant.text, number(asked.text));
  }

  function choose() {
    const shown = variants.filter(wanted);
    const ids = new Set(shown.map(variant => variant.id));
    for (const [id, row] of rows) row.hidden = !ids.has(id);
    document.getElementById("shown").textContent = ids.size;
    const asked = new URLSearchParams([...new FormData(form)].filter(([name, value]) => value !== "" && name !== "model"));
    if (first !== form.elements.model.value) asked.set("model", form.elements.model.value);
    try { history.replaceState(null, "", `${location.pathname}${asked.size ? `?${asked}` : ""}${location.hash}`); } catch { /* a copy in a frame */ }
    for (const view of Object.values(views)) view.data("variants", shown.map(each => ({ ...each }))).runAsync();
    return shown;
  }

  function mark(id) {
    for (const row of rows.values()) row.classList.toggle("chosen", row.id === id);
    views.frontier?.signal("chosen", id).runAsync();
  }

  function follow(datum) {
    if (datum?.id) {
      mark(datum.id);
      rows.get(datum.id).scrollIntoView({ block: "nearest" });
    } else if (datum?.selector) {
      for (const key of ["selector", "repaired_by", "removed"]) form.elements[key].value = datum[key];
      choose();
      table.scrollIntoView();
    }
  }

  // A panel is as wide as a phone shows without scrolling.
  function fitted(specification, width) {
    if (!specification.facet) return specification;
    const columns = Math.max(1, Math.floor(width / 250));
    const panel = Math.floor(width / columns) - (columns > 1 ? 40 : 80);
    return { ...specification, columns, spec: { ...specification.spec, width: panel } };
  }

  async function draw(name) {
    const place = document.getElementById(`${name}-live`), width = place.clientWidth;
    const specification = structuredClone(fitted(figures[name], width));
    if (width < 500) specification.config.legend.columns = 1;
    specification.data.values = variants.filter(wanted).map(each => ({ ...each }));
    const { view } = await vegaEmbed(place, specification, { mode: "vega-lite", actions: false, renderer: "svg" });
    view.addEventListener("click", (_, item) => follow(item?.datum));
    views[name] = view;
  }

  function sort(column) {
    const head = table.tHead.rows[0].cells[column], down = head.getAttribute("aria-sort") === "ascending";
    const key = row => {
      const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim();
      return text === "" || text === "–" ? null : isNaN(text) ? text : Number(text);
    };
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...rows.values()].map(row => [key(row), row]).sort(([x], [y]) => {
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    }).map(([, row]) => row));
  }

  function save(name, type, ...parts) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(parts, { type }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // Every cell is a number or a text: an interval has columns of its own, which a column without any lacks.
  function download() {
    const quoted = text => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const plain = text => (text === "–" ? "" : text.replaceAll("−", "-"));
    const parts = cell => plain(cell.textContent.trim()).split(/\s*[±[\],]\s*/).filter(Boolean);
    const chosen = [...body.rows].filter(row => !row.hidden);
    const columns = [...table.tHead.rows[0].cells].map((head, place) => {
      const numbers = head.classList.contains("n"), name = head.textContent.trim();
      const cells = chosen.map(row => (numbers ? parts(row.cells[place]) : [row.cells[place].textContent.trim()]));
      const width = Math.max(1, ...cells.map(each => each.length));
      const names = { 1: [name], 2: [name, `${name} ±`], 3: [name, `${name} low`, `${name} high`] }[width];
      return [names, ...cells.map(each => names.map((_, at) => each[at] ?? ""))];
    });
    const lines = [...Array(chosen.length + 1).keys()].map(at => columns.flatMap(column => column[at]).map(quoted).join(","));
    save("variants.csv", "text/csv", "\ufeff", lines.join("\r\n"), "\r\n");
  }

  function picture(name) {
    const svg = document.querySelector(`#${name} figure svg`).cloneNode(true), box = svg.viewBox.baseVal;
    svg.setAttribute("width", `${box.width}pt`);
    svg.setAttribute("height", `${box.height}pt`);
    save(`${name}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(svg));
  }

  // The address holds what is chosen, so that a view can be shared.
  const first = form.elements.model.value;
  for (const [name, value] of new URLSearchParams(location.search)) if (form.elements[name]) form.elements[name].value = value;
  document.addEventListener("click", event => {
    const { svg, csv } = event.target.dataset ?? {};
    if (svg) picture(svg);
    if (csv) save(`${csv}.csv`, "text/csv", document.getElementById(`${csv}-csv`).textContent);
  });
  // A link to a folded section opens it.
  const unfold = () => document.querySelector(`${location.hash || "#none"} > details:has(> summary > h2)`)?.setAttribute("open", "");
  addEventListener("hashchange", unfold);
  unfold();
  form.addEventListener("input", choose);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { mark(""); choose(); }));
  document.getElementById("download").addEventListener("click", download);
  document.getElementById("more").addEventListener("click", event => {
    event.target.setAttribute("aria-pressed", table.classList.toggle("all"));
  });
  [...table.tHead.rows[0].cells].forEach((head, column) => head.addEventListener("click", () => sort(column)));
  body.addEventListener("click", event => {
    mark(event.target.closest("tr").id);
    document.getElementById("frontier-live")?.scrollIntoView({ block: "center" });
  });
  choose();
  document.documentElement.drawn = Promise.all(Object.keys(figures).map(draw));
})();
