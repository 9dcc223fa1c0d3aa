document.documentElement.classList.add("js");
for (const section of document.querySelectorAll("[data-claims]")) claims(section);
for (const figure of document.querySelectorAll("[data-slider]")) slider(figure);
downloads(document.querySelector("main"));

// A box that scrolls sideways is a tab stop, so that the keyboard reaches all of its content; other boxes are not. A box of the class
// "tall" also scrolls down.
const scrolls = (overflow, content, box) => (overflow === "auto" || overflow === "scroll") && content > box;
const boxes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { overflowX, overflowY } = getComputedStyle(target);
    const tall = target.classList.contains("tall") && scrolls(overflowY, target.scrollHeight, target.clientHeight);
    if (tall || scrolls(overflowX, target.scrollWidth, target.clientWidth)) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const box of document.querySelectorAll(".scroll, .card, .text, math")) boxes.observe(box);

// A link into a closed fold opens it.
function reveal() {
  const target = document.getElementById(location.hash.slice(1)), closed = [];
  for (let box = target; box; box = box.parentElement) if (box.localName === "details" && !box.open) closed.push(box);
  for (const box of closed) box.open = true;
  if (closed.length) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
