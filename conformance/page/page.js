"use strict";
(async () => {
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  // Of each part of a record the distinct values, and the place among them of each verdict's own.
  const packed = Uint8Array.from(atob(find("#records").textContent), (letter) => letter.charCodeAt(0));
  const columns = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const records = columns[0][1].map((_, number) =>
    Object.assign({}, ...columns.map(([values, places]) => values[places[number]])));
  for (const record of records) { // by implementation and law, as script_files names it
    const name = `${record.impl.replace(/[^\p{L}\p{N}_]/gu, "-")}-${record.law}.py`;
    record.file = record.folder && `${record.folder}/${name}`;
  }
  const form = find("#filters");
  const menu = find(".menu");
  const panel = find("#panel");
  const symbols = Object.fromEntries(all(".verdict").map((label) => [find("input", label).value, find(".symbol", label).textContent]));
  const buttons = new Map(all(".laws .cell").map((button) => [Number(button.value), button]));
  for (const button of buttons.values()) button.setAttribute("aria-haspopup", "dialog");
  for (const mark of all(".cell b")) mark.title = "measured on older code";
  for (const mark of all(".family td > b")) mark.title = "some measured on older code";

  // The name of a verdict in the address. Runs that contradict each other have several of one name, which are counted.
  const names = [];
  const numbers = new Map();
  records.forEach((record, number) => {
    const name = [record.law, record.impl, record.device, record.torch].join("/");
    let free = name;
    for (let count = 2; numbers.has(free); count += 1) free = `${name}/${count}`;
    names.push(free);
    numbers.set(free, number);
  });

  const reasons = (row) => all("button", row).map((button) => records[button.value].known?.reason || "").join(" ");

  const meaning = (row) => {
    const { tier, consequence, words } = records[find("button", row).value];
    return [tier, consequence, words].filter(Boolean).join(" ");
  };

  const tables = all(".scroller table").map((table) => ({
    table,
    edition: table.closest(".edition"),
    section: table.closest(".kind"),
    heads: all("thead th", table).slice(1),
    feet: all("tfoot td", table),
    families: all(".family", table).map((head) => ({
      head,
      body: head.nextElementSibling,
      toggle: find(".toggle", head),
      tallies: all("td", head),
      lines: all("tr", head.nextElementSibling).map((row) => ({
        row,
        text: `${find("th", row).textContent} ${meaning(row)} ${reasons(row)}`.toLowerCase(),
        cells: all("td", row).map((cell) => ({ cell, buttons: all("button", cell) })),
      })),
    })),
  }));
  const families = tables.flatMap((table) => table.families);
  let fitting = []; // numbers of the verdicts that fit the filters, in the order of the page
  let current = null; // number of the verdict in the panel

  const open = (family, yes) => {
    family.body.hidden = !yes;
    family.toggle.setAttribute("aria-expanded", String(yes));
  };

  const retold = (cell, counts) => {
    for (const part of all(".tally > span", cell)) {
      const count = counts[part.className] || 0;
      part.hidden = !count;
      find("b", part).textContent = count;
    }
    all(".strip i", cell).forEach((piece) => {
      piece.style.flexGrow = counts[piece.className] || 0;
    });
  };

  const chosen = () => {
    const data = new FormData(form);
    const set = (name) => new Set(data.getAll(name));
    const words = data.get("text").toLowerCase().split(/\s+/).filter(Boolean);
    const [verdicts, impls] = [set("verdict"), set("impl")];
    const [family, tier, device, torch, only] = ["family", "tier", "device", "torch", "only"].map((name) => data.get(name));
    return {
      narrow: Boolean(words.length || verdicts.size || family || tier || only),
      edition: (section) => (!device || section.dataset.device === device) && (!torch || section.dataset.torch === torch),
      impl: (name) => !impls.size || impls.has(name),
      family: (name) => !family || family === name,
      line: (text) => words.every((word) => text.includes(word)),
      record: (record) =>
        (!verdicts.size || verdicts.has(record.verdict)) &&
        (!tier || record.tier === tier) &&
        (only !== "wrong gradient" || record.effect === only) &&
        (only !== "limits" || record.verdict !== "agrees" || record.unexpected) &&
        (only !== "unexpected" || record.unexpected),
    };
  };

  /** The verdicts of a law that fit, by column; those that do not are faded, and the law is hidden where none does. */
  const applyToLine = (line, columns, wanted) => {
    const told = wanted.line(line.text);
    let fits = false;
    const counted = line.cells.map(({ cell, buttons: its }, place) => {
      cell.hidden = !columns[place];
      const here = told && columns[place] ? its.filter((button) => wanted.record(records[button.value])) : [];
      for (const button of its) button.classList.toggle("faded", !here.includes(button));
      fits ||= here.length > 0;
      return here.map((button) => Number(button.value));
    });
    line.row.hidden = !fits;
    return counted;
  };

  const applyToTable = (table, wanted) => {
    const columns = table.heads.map((head) => wanted.impl(head.dataset.impl));
    [table.heads, table.feet].forEach((cells) => cells.forEach((cell, place) => { cell.hidden = !columns[place]; }));
    table.table.style.setProperty("--columns", columns.filter(Boolean).length);
    const shown = wanted.edition(table.edition);
    const before = fitting.length;
    for (const family of table.families) {
      const counts = columns.map(() => ({}));
      const start = fitting.length;
      if (shown && wanted.family(family.head.dataset.family)) {
        for (const line of family.lines) {
          applyToLine(line, columns, wanted).forEach((here, place) => {
            for (const number of here) counts[place][records[number].verdict] = (counts[place][records[number].verdict] || 0) + 1;
            fitting.push(...here);
          });
        }
      }
      family.tallies.forEach((cell, place) => {
        cell.hidden = !columns[place];
        retold(cell, counts[place]);
      });
      family.head.hidden = fitting.length === start;
      open(family, wanted.narrow && !family.head.hidden);
    }
    table.section.hidden = fitting.length === before;
  };

  const apply = () => {
    const wanted = chosen();
    fitting = [];
    for (const table of tables) applyToTable(table, wanted);
    for (const edition of all(".edition")) edition.hidden = all(".kind", edition).every((section) => section.hidden);
    find("#nothing").hidden = fitting.length > 0;
    const laws = new Set(fitting.map((number) => records[number].law)).size;
    const count = (value, one) => `${value.toLocaleString("en")} ${one}${value === 1 ? "" : "s"}`;
    const of = fitting.length < records.length ? ` of ${records.length.toLocaleString("en")}` : "";
    find("#found").textContent = `${fitting.length.toLocaleString("en")}${of} ${records.length === 1 ? "verdict" : "verdicts"} on ${count(laws, "law")}`;
    const picked = new FormData(form).getAll("impl");
    find("summary", menu).firstChild.textContent = picked.length > 2 ? `${picked.length} chosen` : picked.join(", ") || "all implementations";
    toldUnfold();
    fit();
  };

  const shownFamilies = () => families.filter((family) => !family.head.hidden);
  const toldUnfold = () => {
    const closed = shownFamilies().some((family) => family.body.hidden);
    find("#unfold").textContent = closed ? "Open all families" : "Close all families";
  };

  /** A table that is no wider than its place needs no scrolling of its own, and its head can stay at the top of the window. */
  const fit = () => {
    for (const { table } of tables) {
      const place = table.parentElement;
      place.classList.remove("whole");
      place.classList.toggle("whole", table.offsetWidth <= place.clientWidth + 1);
    }
  };

  const written = () => {
    const parameters = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) parameters.append(name, value);
    if (current !== null) parameters.set("cell", names[current]);
    history.replaceState(null, "", parameters.size ? `#${parameters}` : location.pathname + location.search);
  };

  const read = () => {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const control of form.elements) {
      if (control.type === "checkbox") control.checked = parameters.getAll(control.name).includes(control.value);
      else if (control.name) control.value = parameters.get(control.name) || "";
    }
    for (const select of all("select", form)) if (select.selectedIndex < 0) select.value = "";
    apply();
    const number = numbers.get(parameters.get("cell"));
    if (number !== undefined) show(number);
    else if (panel.open) panel.close();
  };

  const made = (tag, text, className = "") => Object.assign(document.createElement(tag), { textContent: text, className });

  const fact = (name, ...values) => {
    const value = document.createElement("dd");
    value.append(...values);
    find("#panel-facts").append(made("dt", name), value);
  };

  /** A text with its addresses, and numbers of PyTorch's issues, as links. */
  const linked = (text) => text.split(/(https?:\/\/[^\s,;)]+|pytorch#\d+)/).map((part, place) => {
    const address = part.replace(/^pytorch#/, "https://github.com/pytorch/pytorch/issues/");
    return place % 2 ? Object.assign(made("a", part), { href: address, rel: "noreferrer" }) : part;
  });

  const told = (record) => {
    find("#panel-facts").replaceChildren();
    fact("Implementation", record.impl);
    const aged = find("b", buttons.get(current)) ? ", with older code than when this page was made" : "";
    fact("Measured with", `torch ${record.torch} on ${record.device}${aged}`);
    const counts = Object.entries(record.counts).flatMap(([verdict, count]) => [" · ", made("span", `${verdict} ${count.toLocaleString("en")}`, verdict)]);
    fact("Cases", record.cases.toLocaleString("en"), ...counts);
    if (record.tier) fact("The law", `${record.tier}; breaking it: ${record.consequence}`);
    if (record.options) fact("Called with", made("code", record.options));
    const idle = record.verdict === "agrees" && record.expected === "agrees";
    const why = idle ? ", but too few cases prove it" : ", so this verdict is unexpected";
    fact("Declared", made("span", record.expected, record.expected), record.unexpected ? why : "");
    if (record.known) {
      fact("Why", record.known.reason);
      fact("Source", ...linked(record.known.source));
    }
  };

  const led = (number, isCurrent) => {
    const record = records[number];
    const button = made("button", "", `cell ${record.verdict}`);
    button.append(record.impl, made("span", ` ${record.verdict}`, "unseen"));
    button.type = "button";
    if (isCurrent) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => show(number));
    const item = document.createElement("li");
    item.append(button);
    return item;
  };

  /** What all implementations do under the law of this verdict, by device and version of torch. */
  const elsewhere = (number) => {
    const groups = new Map();
    records.forEach((record, other) => {
      if (record.law !== records[number].law) return;
      const where = `${record.device}, torch ${record.torch}`;
      groups.set(where, [...(groups.get(where) || []), led(other, other === number)]);
    });
    find("#panel-elsewhere").replaceChildren(...[...groups].flatMap(([where, items]) => {
      const list = document.createElement("ul");
      list.append(...items);
      return [made("p", where, "hint"), list];
    }));
  };

  /** A word for a shell, as it is. */
  const quoted = (word) => (/^[\w.:\/+=-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

  /** How to run the script, or to print it where it is no file: a command for the root of a clone, and what that does. */
  const scriptCommand = (record) => {
    if (!record.file) {
      const chosen = `--show ${quoted(record.impl)} --law ${quoted(record.law)}`;
      return [`python -m reprise report ${chosen}`, "In the root of a clone, this prints it:"];
    }
    const ours = record.takes === "this project";
    const needs = ours ? "" : `; it takes ${record.takes}`;
    const program = record.ranks ? `torchrun --nproc-per-node ${record.ranks}` : "python";
    const command = `${ours ? "PYTHONPATH=. " : ""}${program} results/${record.file}`;
    return [command, `In the root of a clone, this ends with status 1 while the fault is there${needs}:`];
  };

  const show = (number) => {
    const record = records[number];
    current = number;
    const badge = find("#panel-verdict");
    badge.className = `badge ${record.verdict}`;
    badge.textContent = `${symbols[record.verdict]} ${record.verdict}${record.unexpected ? ", unexpected" : ""}`;
    const statement = find(".statement", buttons.get(number).closest("tr"));
    find("#panel-statement").textContent = statement ? statement.textContent : record.law;
    find("#panel-law").textContent = `${record.family ? `${record.family} / ` : ""}${record.law}`;
    told(record);
    find("#panel-seen").hidden = !record.detail;
    find("#panel-detail").textContent = record.detail;
    find("#panel-script").hidden = !record.program;
    [find("#panel-run").textContent, find("#panel-hint").textContent] = scriptCommand(record);
    find("#panel-file").hidden = !record.file;
    find("#panel-file").href = record.file;
    const command = `${record.judged_by} -k ${record.ranks ? record.law : quoted(`test_${record.law}[${record.impl}]`)}`;
    const parts = command.split(/(?<= )(?=-)/).map((part) => made("span", part)); // an option and its value stay together
    find("#panel-command").replaceChildren(...parts);
    elsewhere(number);
    const place = fitting.indexOf(number);
    find("#previous").disabled = place < 1;
    find("#next").disabled = place < 0 || place === fitting.length - 1;
    if (!panel.open) panel.showModal();
    panel.scrollTop = 0;
    find("#panel-statement").focus();
    written();
  };

  const step = (by) => show(fitting[fitting.indexOf(current) + by]);

  /** Focus goes back to the verdict that was shown last, in whatever family that is. */
  const closed = () => {
    const button = buttons.get(current);
    const family = families.find(({ body }) => body.contains(button));
    current = null;
    written();
    if (!family.head.hidden && !button.closest("[hidden]:not(.laws)")) {
      open(family, true);
      toldUnfold();
      button.focus();
    }
  };

  const copy = async (button) => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      getSelection().selectAllChildren(source);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    find("#panel-said").textContent = "Copied";
    setTimeout(() => {
      button.textContent = "Copy";
      find("#panel-said").textContent = "";
    }, 1600);
  };

  /** Arrow keys go from verdict to verdict: along a law, and from law to law in one column. */
  const moved = (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const cell = event.target.closest(".laws td");
    if (!steps || !cell || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const row = cell.parentElement;
    const rows = all(".laws tr", row.closest("table")).filter((one) => one.checkVisibility());
    const next = steps[0]
      ? rows.slice(steps[0] < 0 ? 0 : rows.indexOf(row) + 1, steps[0] < 0 ? rows.indexOf(row) : undefined)
          .map((one) => find("button", one.cells[cell.cellIndex])).filter(Boolean).at(steps[0] < 0 ? -1 : 0)
      : (() => {
          const here = all("button", row).filter((one) => one.checkVisibility());
          return here[here.indexOf(event.target.closest("button")) + steps[1]];
        })();
    if (!next) return;
    event.preventDefault();
    next.focus();
  };
  const shown = (event) => {
    // Taking the focus scrolls without heed of scroll-margin, which keeps a verdict off the first column and the head.
    event.target.closest(".laws td button")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  const changed = () => { apply(); written(); };
  form.addEventListener("change", changed);
  find("[type=search]").addEventListener("input", changed);
  form.addEventListener("reset", () => setTimeout(changed));
  find("#unfold").addEventListener("click", () => {
    const yes = shownFamilies().some((family) => family.body.hidden);
    for (const family of shownFamilies()) open(family, yes);
    toldUnfold();
  });
  find("main").addEventListener("click", (event) => {
    const button = event.target.closest(".laws .cell");
    if (button) show(Number(button.value));
    const head = event.target.closest(".family");
    if (!head) return;
    const family = families.find((one) => one.head === head);
    open(family, family.body.hidden);
    toldUnfold();
  });
  find("main").addEventListener("keydown", moved);
  find("main").addEventListener("focusin", shown);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    find("summary", menu).focus();
  });
  document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  find("#close").addEventListener("click", () => panel.close());
  find("#previous").addEventListener("click", () => step(-1));
  find("#next").addEventListener("click", () => step(1));
  panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });
  panel.addEventListener("close", closed);
  for (const button of all("[data-copy]")) button.addEventListener("click", () => copy(button));
  addEventListener("hashchange", read);
  addEventListener("resize", fit);
  read();
  document.documentElement.dataset.ready = "";
})();
