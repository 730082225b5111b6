"""The page in a headless Chromium: it draws, follows mouse and keyboard, can be read, and has no errors."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atcl.analysis.observers import Observers
from atcl.reports.writing import LIMIT, report
from atcl.runs.layout import ANALYSIS
from atcl.runs.run import Run
from atcl.runs.spec import Execution
from atcl.runs.start import train
from atcl.training.schedules import Constant
from tests import tiny
from tests.reports import browser
from tests.reports.browser import Browser

NASTY = (
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=2>",
    "a&b",
    "“c”",
    "d' \"e",
)
PATH = browser.found()

pytestmark = pytest.mark.skipif(
    PATH is None, reason="there is no Chromium: apt-get install chromium, or name one in ATCL_BROWSER"
)


def trained(folder: Path, name: str, seed: int) -> Run:
    """A run of a few epochs; the oracle's are enough to learn something that an attack can turn."""
    recipe = tiny.RECIPES[name]
    if name == "digits/oracle":
        recipe = replace(recipe, stages=(replace(recipe.stages[0], epochs=30, lr=Constant(0.01)),))
    problem = replace(tiny.problem(recipe.labels), names=NASTY)
    return train(
        recipe,
        name=name,
        seed=seed,
        out=folder,
        problem=problem,
        build=tiny.TinyNet,
        execution=Execution(device="cpu", observing=Observers(("gradients", "test"), 1)),
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages on one run, on three of two recipes, and on two seeds of which the second has just begun."""
    folder = tmp_path_factory.mktemp("<script>window.broken=3")
    runs = [
        trained(folder / f"{name}-{seed}", f"digits/{name}", seed)
        for name, seed in (("warmup-pla", 1), ("warmup-pla", 2), ("oracle", 1))
    ]
    test = tiny.split(40, seed=1)
    one = report(runs[0], folder / "one.html", test=test, build=tiny.TinyNet, device="cpu")
    many = report(runs, folder / "many.html", test=test, build=tiny.TinyNet, device="cpu")
    cut_short(runs[1])
    return {"one": one, "many": many, "young": report(runs[:2], folder / "young.html", gallery=False)}


def cut_short(run: Run) -> None:
    """Leave of a run what it would have left if stopped after its second epoch."""
    for path in (run.folder / "journal.jsonl", run.folder / ANALYSIS):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["epoch"] <= 2), encoding="utf-8")
    (run.folder / "result.json").unlink()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    assert PATH
    with Browser(PATH) as started:
        yield started


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390, 360])
@pytest.mark.parametrize("name", ["one", "many"])
def test_the_page_has_no_errors_and_nothing_is_wider_than_the_window(
    chromium: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    chromium.open(pages[name], width, dark=dark)
    assert chromium.problems() == []
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert pages[name].stat().st_size < LIMIT
    assert chromium.run("window.broken") is None  # names of classes and folders are text, whatever they hold
    assert chromium.run("document.scripts.length") == 2
    light = chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(250, 250, 248)"
    assert light != dark


CURVES = """[...document.querySelectorAll('.plot')].map((plot) => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('path.line')].map((path) => {
    const box = path.getBoundingClientRect();
    const across = box.left >= frame.left - 1 && box.right <= frame.right + 1;
    const upright = box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
    return {d: path.getAttribute('d'), wide: box.width, stroke: getComputedStyle(path).stroke,
            inside: across && upright};
  });
})"""


@pytest.mark.parametrize(("name", "width"), [("one", 1280), ("one", 360), ("many", 1280)])
def test_curves_are_drawn_inside_their_frames(
    chromium: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.open(pages[name], width)
    drawn = chromium.run(CURVES)
    panels = data(chromium)["panels"]
    found = {panel["id"] for panel in panels}
    assert found >= {"epsilon", "gamma", "loss", "gradient.first_norm"}
    assert found >= {"test_natural", "test_pgd20", "pseudo_label_accuracy"}
    assert [len(lines) for lines in drawn] == [len(panel["lines"]) for panel in panels]
    for lines in drawn:
        for line in lines:
            assert line["inside"]
            assert line["wide"] > 30
            assert line["d"].count("L") >= 4
            assert line["stroke"] not in ("none", "rgba(0, 0, 0, 0)")


def test_pointing_at_a_curve_shows_the_value_and_a_line_in_all_panels(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["one"])
    box = where(chromium, "document.querySelectorAll('.plot')[0]")
    chromium.point(box["x"] + box["width"] * 0.5, box["y"] + 60)
    shown = chromium.run("document.querySelector('.tip:not([hidden])').innerText")
    epoch = int(re.findall(r"epoch (\d+)", shown)[0])
    line = data(chromium)["panels"][0]["lines"][0]
    assert f"{line['y'][line['x'].index(epoch)]:.1f} %" in shown
    assert chromium.run("document.querySelectorAll('.hair').length") == len(data(chromium)["panels"])
    outputs = "[...document.querySelectorAll('.panel output')]"
    assert chromium.run(f"{outputs}.every((one) => one.innerText.includes('epoch'))")
    chromium.point(2, 2)
    assert chromium.run("document.querySelectorAll('.hair').length") == 0


SINGLES = """[...document.querySelectorAll('.plot')].flatMap((plot) => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll('path.single, path.line')].map((path) => path.getBoundingClientRect())
    .map((box) => box.left >= frame.left - 1 && box.right <= frame.right + 1);
})"""


def test_a_seed_that_has_just_begun_leaves_the_curves_whole(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["young"])
    inside = chromium.run(SINGLES)
    assert len(inside) == 3 * len(data(chromium)["panels"])
    assert all(inside)
    box = where(chromium, "document.querySelectorAll('.plot')[0]")
    for share, epoch, alone in ((0.98, 5, True), (0.15, 1, False)):
        chromium.point(box["x"] + box["width"] * share, box["y"] + 60)
        shown = chromium.run("document.querySelector('.tip:not([hidden])').innerText")
        assert shown.startswith(f"epoch {epoch}")
        assert ("(1 of 2 seeds)" in shown, "±" in shown) == (alone, not alone)  # one seed has no spread
    assert chromium.problems() == []


FOCUS = """(() => {
  const one = document.activeElement;
  const text = document.getElementById('told').textContent;
  return {kind: one.className, body: one === document.body, edge: getComputedStyle(one).outlineWidth, text};
})()"""

# elements that the keyboard reaches, and those of them in closed or hidden parts
REACHABLE = """'a[href], button, select, summary, [tabindex="0"]'"""
HIDDEN = f"""[...document.querySelectorAll('.one[hidden], details:not([open])')]
  .flatMap((one) => [...one.querySelectorAll({REACHABLE})])
  .filter((one) => !one.matches('details:not([open]) > summary') || one.closest('.one[hidden]')).length"""


def test_the_keyboard_reaches_every_curve_and_moves_through_its_epochs(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    chromium.open(pages["many"])
    wanted = chromium.run(f"document.querySelectorAll({REACHABLE}).length")
    reached, plots = 0, 0
    for _ in range(wanted + 5):
        chromium.press("Tab")
        where_now = chromium.run(FOCUS)
        if where_now["body"]:
            break
        reached += 1
        assert where_now["edge"] == "3px"  # the focus can be seen
        if where_now["kind"] == "plot":
            plots += 1
            assert where_now["text"].startswith("Epoch ")
    assert plots == len(data(chromium)["panels"])
    assert reached >= wanted - chromium.run(HIDDEN)
    chromium.run("document.querySelectorAll('.plot')[1].focus()")
    chromium.press("End")
    chromium.press("ArrowLeft", 2)
    first = chromium.run("document.getElementById('told').textContent")
    panel = data(chromium)["panels"][1]
    epochs = sorted({x for line in panel["lines"] for x in line["x"]})
    assert first.startswith(f"Epoch {epochs[-3]}, {panel['title']}: ")
    chromium.press("Home")
    assert chromium.run("document.activeElement.getAttribute('aria-valuenow')") == "1"
    line = panel["lines"][0]
    assert f"{line['y'][0]:.1f}" in chromium.run("document.getElementById('told').textContent")
    chromium.press("Escape")
    assert chromium.run("document.querySelectorAll('.hair').length") == 0


def test_images_are_there_with_their_adversarial_copies(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["one"])
    facts = "[one.naturalWidth, one.naturalHeight, one.alt, one.src]"
    images = chromium.run(f"[...document.querySelectorAll('.card img')].map((one) => {facts})")
    assert len(images) == 3 * 12
    assert all(image[:2] == [6, 6] and image[2] for image in images)
    assert len({image[3] for image in images}) > 24  # image, adversarial copy and difference differ


def test_the_gallery_shows_one_kind_at_a_time(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["many"])
    place = "document.querySelector('.one[data-run=\"2\"]')"
    kinds = chromium.run(f"[...{place}.querySelectorAll('.filters button')].map((one) => one.dataset.filter)")
    assert kinds[0] == "all"
    # at times the model stays right, at times the attack turns it, or it was wrong before
    assert len(kinds) >= 3
    for kind in kinds[1:]:
        chromium.run(f"{place}.querySelector('[data-filter={kind}]').click()")
        cards = f"[...{place}.querySelectorAll('.card:not([hidden])')]"
        assert set(chromium.run(f"{cards}.map((one) => one.dataset.kind)")) == {kind}
    chromium.run(f"{place}.querySelector('[data-filter=all]').click()")
    assert chromium.run(f"{place}.querySelectorAll('.card[hidden]').length") == 0


def test_the_legend_and_the_choice_of_a_run_work(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["many"])
    before = chromium.run("document.querySelectorAll('path.line').length")
    assert chromium.run("document.querySelectorAll('path.band').length") > 0  # two seeds of one recipe
    chromium.run("document.querySelector('.key').click()")
    assert 0 < chromium.run("document.querySelectorAll('path.line').length") < before
    assert chromium.run("document.querySelector('.key').getAttribute('aria-pressed')") == "false"
    chromium.run("document.querySelector('.key').click()")
    assert chromium.run("document.querySelectorAll('path.line').length") == before
    shown = "[...document.querySelectorAll('.one:not([hidden])')].map((one) => one.dataset.run)"
    assert chromium.run(shown) == ["0"]
    chromium.run("document.getElementById('which').value = '2'")
    chromium.run("document.getElementById('which').dispatchEvent(new Event('change'))")
    assert chromium.run(shown) == ["2"]


def test_the_theme_can_be_chosen_against_the_system(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["one"], dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for _ in range(4):
        seen.append((chromium.run("document.getElementById('scheme').textContent"), chromium.run(ground)))
        chromium.run("document.getElementById('theme').click()")
    assert [name for name, _ in seen] == ["system", "light", "dark", "system"]
    assert seen[0] == seen[3]
    assert seen[0][1] == seen[2][1] != seen[1][1]
    chromium.run("localStorage.clear()")


BASICS = """(() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const label = (one) => one.getAttribute('aria-label') || one.getAttribute('aria-labelledby');
  const name = (one) => label(one) || one.innerText || (one.labels && one.labels.length);
  const roles = '[role=region], [role=group], [role=slider], [role=img]';
  for (const one of all('button, select, a, summary, ' + roles))
    if (!name(one) && !one.closest('[hidden]')) wrong.push(one.outerHTML.slice(0, 120));
  for (const one of all('img:not([alt])')) wrong.push('image without words');
  for (const one of all('th:not([scope])')) wrong.push('th without scope: ' + one.innerText);
  for (const one of all('table:not(.facts)')) if (!one.caption) wrong.push('table without caption');
  const ids = all('[id]').map((one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id comes twice');
  if (!document.documentElement.lang || !document.title) wrong.push('no language or title');
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
  let level = 1;
  for (const one of document.querySelectorAll('h1, h2, h3, h4')) {
    const next = Number(one.tagName[1]);
    if (next > level + 1) wrong.push('a heading is skipped before ' + one.innerText);
    level = next;
  }
  return wrong;
})()"""

CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (one) => one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
    if (!text || !one.checkVisibility() || one.closest('script, style, .unseen, .skip')) continue;
    const style = getComputedStyle(one), size = parseFloat(style.fontSize);
    const front = light(rgba(one instanceof SVGElement ? style.fill : style.color));
    const back = light(behind(one));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    found.push({ratio, needed, text: text.slice(0, 40), kind: one.className.baseVal ?? one.className});
  }
  return found;
})()"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["one", "many"])
def test_everything_has_a_name_and_all_text_stands_out(
    chromium: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    chromium.open(pages[name], dark=dark)
    chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert chromium.run(BASICS) == []
    found = chromium.run(CONTRAST)
    assert len(found) > 200
    assert [one for one in found if one["ratio"] < one["needed"]] == []


def data(chromium: Browser) -> Any:
    return json.loads(chromium.run("document.getElementById('data').textContent"))


def where(chromium: Browser, element: str) -> dict[str, float]:
    """Bring an element into sight and return its place."""
    chromium.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box: dict[str, float] = chromium.run(f"{element}.getBoundingClientRect().toJSON()")
    return box
