// The module tree. Each node is [name, label, class, depth, records, flagged, headroom, origin], parents first.
// What is open stays open while the page lives, so it is kept with the element.
const MANY = 40;

export default function ({ data, parentElement, setTriggerValue }) {
  const box = parentElement.querySelector(".tree");
  const nodes = data.nodes;
  const hasChildren = nodes.map((node, i) => i + 1 < nodes.length && nodes[i + 1][3] > node[3]);
  const open = (box.opened ??= firstOpen(nodes, hasChildren));
  if (box.lastSelected !== data.selected) openAbove(open, data.selected);
  box.lastSelected = data.selected;
  const isOpen = (i) => data.expanded || open.has(nodes[i][0]);

  const choose = (i) => setTriggerValue("module", nodes[i][0]);
  const toggle = (i) => {
    const name = nodes[i][0];
    if (open.has(name)) open.delete(name);
    else open.add(name);
    draw(i);
  };

  function draw(focused) {
    const top = box.scrollTop;
    box.replaceChildren(...rows());
    box.scrollTop = top;
    if (focused !== undefined) box.querySelector(`[data-i="${focused}"]`)?.focus();
  }

  function* rows() {
    let closed = Infinity;
    for (let i = 0; i < nodes.length; i++) {
      if (nodes[i][3] > closed) continue;
      closed = hasChildren[i] && !isOpen(i) ? nodes[i][3] : Infinity;
      yield row(i);
    }
    if (!nodes.length) yield element("div", "empty", "No module of that name or class.");
  }

  function row(i) {
    const [name, label, kind, depth, records, flagged, headroom, origin] = nodes[i];
    const line = element("div", "row" + (origin ? " origin" : "") + (records ? "" : " silent"));
    line.dataset.i = i;
    line.tabIndex = 0;
    line.style.paddingLeft = `${4 + depth * 11}px`;
    line.title = `${name || "(the model)"}\n${kind}\n${records.toLocaleString()} records` +
      (flagged ? `, ${flagged.toLocaleString()} non-finite` : "") +
      (headroom === null ? "" : `\nleast headroom ${headroom} binades`);
    line.setAttribute("role", "treeitem");
    line.setAttribute("aria-selected", name === data.selected && name !== "");
    line.setAttribute("aria-level", depth + 1);
    if (hasChildren[i]) line.setAttribute("aria-expanded", isOpen(i));
    const caret = element("button", "caret" + (hasChildren[i] ? "" : " leaf"), isOpen(i) ? "▼" : "▶");
    caret.tabIndex = -1;
    caret.setAttribute("aria-hidden", true); // the row says whether it is open, and arrow keys open it
    caret.onclick = (event) => { event.stopPropagation(); toggle(i); };
    line.append(caret, element("span", "label", label), element("span", "kind", kind), rest(flagged, headroom));
    line.onclick = () => choose(i);
    line.ondblclick = () => hasChildren[i] && toggle(i);
    line.onkeydown = (event) => onKey(event, i, line);
    return line;
  }

  function onKey(event, i, line) {
    const opens = hasChildren[i] && event.key === "ArrowRight" && !isOpen(i);
    const closes = hasChildren[i] && event.key === "ArrowLeft" && isOpen(i);
    if (opens || closes) toggle(i);
    else if (event.key === "ArrowDown") line.nextElementSibling?.focus();
    else if (event.key === "ArrowUp") line.previousElementSibling?.focus();
    else if (event.key === "Enter" || event.key === " ") choose(i);
    else return;
    event.preventDefault();
  }

  const first = !box.childElementCount;
  draw();
  const goal = first && box.querySelector('[aria-selected="true"], .origin');
  if (goal) box.scrollTop = goal.offsetTop - box.offsetTop - box.clientHeight + 2 * goal.offsetHeight;
}

function element(tag, kind, text = "") {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = text;
  return made;
}

function rest(flagged, headroom) {
  const low = headroom !== null && headroom < 3;
  const text = flagged ? "✕" : headroom === null ? "" : headroom.toFixed(headroom < 100 ? 1 : 0);
  return element("span", "rest" + (flagged ? " out" : low ? " low" : ""), text);
}

// Open at first: all of a small model; of a large one, level by level while there is room, and the way to the origin.
function firstOpen(nodes, hasChildren) {
  const open = new Set();
  for (let depth = 0; depth < 12; depth++) {
    if (nodes.filter((node) => node[3] <= depth + 1).length > MANY) break;
    nodes.forEach((node, i) => { if (node[3] === depth && hasChildren[i]) open.add(node[0]); });
  }
  open.add("");
  nodes.filter((node) => node[7]).forEach((node) => openAbove(open, node[0]));
  return open;
}

function openAbove(open, name) {
  const parts = name.split(".");
  for (let i = 1; i < parts.length; i++) open.add(parts.slice(0, i).join("."));
}
