// Shows a token's numbers when it is pointed at, tapped, or reached with the arrow keys. Shows the source
// of a number, point or curve when it is tapped, because titles need a pointer.
// The rest of the page works without this script.
(() => {
  const book = document.getElementById("book");
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  let shown = null;
  let pinned = false;

  const bits = (hundredths) => (hundredths / 100).toFixed(2);
  const line = (text, kind) => {
    const made = document.createElement("div");
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  function hide() {
    if (shown) shown.removeAttribute("data-on");
    shown = null;
    pinned = false;
    tip.hidden = true;
  }

  function showSource(number) {
    hide();
    // An SVG mark has its title as a child element, which begins with the number.
    const title = number.querySelector("title");
    const text = title ? title.textContent : `${number.textContent}; ${number.title}`;
    const [word, over, ...sources] = text.split("; ");
    tip.replaceChildren(line(word, "word"), line(over));
    for (const source of sources) tip.append(line(source, "where"));
    reveal(number);
  }

  function reveal(from) {
    from.setAttribute("data-on", "");
    shown = from;
    tip.hidden = false;
    place();
  }

  function show(token) {
    hide();
    const home = token.parentElement;
    const rank = Array.prototype.indexOf.call(home.getElementsByTagName("i"), token);
    const [saved, own, tokens] = home.dataset.n.split(" ")[rank].split(",");
    const word = token.textContent.trim() || "(white space)";
    tip.replaceChildren(line(word + (tokens ? ` (${tokens} tokens)` : ""), "word"));
    if (saved === "") {
      tip.append(line("not predicted"));
    } else {
      const much = bits(Math.abs(saved));
      tip.append(line(saved < 0 ? `cost ${much} bits` : `saved ${much} bits`, saved < 0 ? "cost" : "saved"));
      if (own) tip.append(line(`${bits(own)} bits with the state, ${bits(+own + +saved)} ${book.dataset.else}`));
    }
    tip.append(line(`window ${home.dataset.w}`, "where"));
    reveal(token);
  }

  // Above the token if there is room, else below it; always within the screen.
  function place() {
    const box = shown.getClientRects()[0] || shown.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left), innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
  }

  const tokenAt = (event) => event.target.closest && event.target.closest("#book i");

  document.addEventListener("pointerover", (event) => {
    if (pinned || event.pointerType === "touch") return;
    const token = tokenAt(event);
    if (token) show(token);
    else hide();
  });
  document.addEventListener("click", (event) => {
    const token = tokenAt(event);
    const number = event.target.closest && event.target.closest(".measured, .missing, svg [data-arm]");
    if (!token && (!number || number === shown)) return hide();
    if (token) show(token);
    else showSource(number);
    pinned = true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    if (!pinned || !book || (event.key !== "ArrowRight" && event.key !== "ArrowLeft")) return;
    const all = Array.from(book.getElementsByTagName("i"));
    const next = all[all.indexOf(shown) + (event.key === "ArrowRight" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView({ block: "nearest" });
    show(next);
    pinned = true;
  });
  addEventListener("scroll", () => {
    if (!shown) return;
    const box = shown.getBoundingClientRect();
    if (pinned && box.bottom > 0 && box.top < innerHeight) place();
    else hide();
  }, { passive: true });
  addEventListener("resize", hide);
})();
