/*
 * Keeps a page of pgbus up to date: every five seconds it fetches the page it stands on and takes over the contents of
 * the regions that are marked with `data-pgbus-region`. Focus, scrolling and opened details stay as they are.
 *
 * It rests while the tab is hidden, while text of a region is selected, and while somebody has paused it, which is kept for
 * this tab. For whoever asks for reduced motion it starts paused.
 */
(() => {
  "use strict";

  const EVERY = 5000;
  const PATIENCE = 20000;
  const KEY = "pgbus-refresh";
  const FOCUSABLE = "a[href], button, summary, input, select, textarea, [tabindex]";

  const bar = document.querySelector("[data-pgbus-refresh]");
  if (!bar) return;
  const button = bar.querySelector("button");
  const said = bar.querySelector("[role=status]");
  let timer = 0;
  let asked = null;
  let ended = false;
  let paused = remembered();

  function remembered() {
    let kept = null;
    try {
      kept = sessionStorage.getItem(KEY);
    } catch {
      // No storage is given to us: then it is not kept.
    }
    return kept === null ? matchMedia("(prefers-reduced-motion: reduce)").matches : kept === "paused";
  }

  function remember() {
    try {
      sessionStorage.setItem(KEY, paused ? "paused" : "running");
    } catch {
      // See above.
    }
  }

  function say(text) {
    if (said.textContent !== text) said.textContent = text; // Told once, not every five seconds.
  }

  function show() {
    button.textContent = paused ? button.dataset.resume : button.dataset.pause;
    button.hidden = ended;
    bar.classList.toggle("pgbus-paused", paused);
  }

  function rests() {
    return paused || ended || document.hidden;
  }

  function wait(milliseconds) {
    clearTimeout(timer);
    if (!rests()) timer = setTimeout(refresh, milliseconds);
  }

  function stop() {
    clearTimeout(timer);
    if (asked) asked.abort();
  }

  async function refresh() {
    if (asked || rests()) return;
    const mine = new AbortController();
    asked = mine;
    bar.classList.add("pgbus-asking");
    let late = false;
    const limit = setTimeout(() => {
      late = true;
      mine.abort();
    }, PATIENCE);
    try {
      const response = await fetch(location.href, { signal: mine.signal, cache: "no-store", credentials: "same-origin" });
      if (response.redirected || response.status === 403 || response.status === 404) {
        ended = true;
        say(bar.dataset.ended);
      } else if (!response.ok) {
        say(bar.dataset.failed);
      } else {
        const text = await response.text();
        if (!mine.signal.aborted) {
          take(new DOMParser().parseFromString(text, "text/html"));
          say("");
        }
      }
    } catch {
      if (late || !mine.signal.aborted) say(bar.dataset.failed);
    } finally {
      clearTimeout(limit);
      asked = null;
      bar.classList.remove("pgbus-asking");
      if (ended) show();
      wait(EVERY);
    }
  }

  function take(fresh) {
    const [left, top] = [scrollX, scrollY];
    for (const region of document.querySelectorAll("[data-pgbus-region]")) {
      const next = fresh.getElementById(region.id);
      if (next && !selected(region) && !next.isEqualNode(without(region))) replace(region, next);
    }
    if (scrollX !== left || scrollY !== top) scrollTo({ left, top, behavior: "instant" });
  }

  /* What a region would be if nobody had opened anything in it. */
  function without(region) {
    const plain = region.cloneNode(true);
    for (const one of plain.querySelectorAll("details[id]")) one.open = false;
    return plain;
  }

  function selected(region) {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(region, true);
  }

  function replace(region, next) {
    const focus = region.contains(document.activeElement) ? place(region, document.activeElement) : null;
    const open = [...region.querySelectorAll("details[id][open]")].map((one) => one.id);
    const scrolled = [...region.querySelectorAll(".pgbus-scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    region.replaceChildren(...next.childNodes);
    for (const id of open) {
      const again = document.getElementById(id);
      if (again) again.open = true;
    }
    region.querySelectorAll(".pgbus-scroll").forEach((one, nth) => {
      if (scrolled[nth]) [one.scrollLeft, one.scrollTop] = scrolled[nth];
    });
    if (focus) found(region, focus)?.focus({ preventScroll: true });
  }

  /* Where the focus is: by the address it leads to, or else the how manieth it is. */
  function place(region, element) {
    return { href: element.getAttribute("href"), nth: [...region.querySelectorAll(FOCUSABLE)].indexOf(element) };
  }

  function found(region, { href, nth }) {
    const all = [...region.querySelectorAll(FOCUSABLE)];
    const same = href === null ? [] : all.filter((one) => one.getAttribute("href") === href);
    if (same.length) return same.includes(all[nth]) ? all[nth] : same[0];
    return all[Math.min(nth, all.length - 1)];
  }

  button.addEventListener("click", () => {
    paused = !paused;
    remember();
    show();
    say("");
    if (paused) stop();
    else refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else refresh();
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => {
    if (event.persisted) refresh();
  });

  show();
  wait(EVERY);
})();
