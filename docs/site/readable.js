// Names and keyboard focus that the theme leaves out: the search dialog, copy buttons, and what scrolls sideways.
function nameAndFocus() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  document.querySelectorAll("nav.md-code__nav").forEach((bar, number) =>
    bar.setAttribute("aria-label", `Code ${number + 1}`))
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
    else box.removeAttribute("tabindex")
  })
}
addEventListener("load", nameAndFocus)
addEventListener("resize", nameAndFocus)
