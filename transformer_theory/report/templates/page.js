document.documentElement.classList.add("js");
for (const section of document.querySelectorAll("[data-claims]")) claims(section);
for (const figure of document.querySelectorAll("[data-film]")) film(figure);

// Boxes that scroll sideways can be reached by keyboard, the others are not stops on the way.
const boxes = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const box of document.querySelectorAll(".scroll, .card, .text, math")) boxes.observe(box);
