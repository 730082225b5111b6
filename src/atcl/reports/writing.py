"""The page itself: its parts, put together into one file that needs no other."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from atcl.core.device import resolve
from atcl.core.errors import AtclError, Notify
from atcl.core.files import write_whole
from atcl.core.version import __version__
from atcl.datasets.truth import Split
from atcl.reports.curves import drawn
from atcl.reports.gathering import Group, RunSummary, grouped
from atcl.reports.looking import predictions_for
from atcl.reports.making import making
from atcl.reports.markup import Markup, el, embedded
from atcl.reports.parts import section
from atcl.reports.scenes import scenes
from atcl.reports.sections import curves, headline, remarks, results
from atcl.runs import layout
from atcl.runs.problem import Build
from atcl.runs.run import Run, open_run

GALLERY_IMAGES = 12  # images of a gallery
LIMIT = 6_000_000  # bytes of a page
PICTURE_BYTES = 2_700_000  # bytes of all its pictures before they are compressed; base64 makes four of three
RUNS = 36  # runs of a page with galleries, at most


@dataclass(frozen=True)
class Gallery:
    """Predictions of a run's model as HTML, or the reason why there are none."""

    html: Markup | None
    why: str = ""


def report(
    runs: "Run | Path | str | Sequence[Run | Path | str]",
    path: Path | str | None = None,
    *,
    images: int = GALLERY_IMAGES,
    gallery: bool = True,
    device: str = "auto",
    data_dir: Path | None = None,
    build: Build | None = None,
    test: Split | None = None,
    notify: Notify = lambda text: None,
) -> Path:
    """Write one HTML page on runs, finished or not, that needs no other file; what is unknown is left out.

    Args:
        runs: a run or its folder, or several.
        path: the file; None: `report.html`, in the folder of a single run.
        images: how many images the gallery of a run shows at most.
        gallery: whether to show images, calibration and confusion, for which the models are run.
        device: auto, cpu or cuda.
        data_dir: where the dataset's files lie.
        build: makes the model, where it is one of your own.
        test: images with true classes, for runs on data of your own.
        notify: called with a line on what is left out.

    Returns:
        The path of the page.

    Raises:
        AtclError: the page cannot be written, or there is no such run or device.

    Examples:
        >>> report("runs/digits/warmup-pla/seed-1")  # doctest: +SKIP
        PosixPath('runs/digits/warmup-pla/seed-1/report.html')
    """
    opened = [
        run if isinstance(run, Run) else open_run(run)
        for run in ([runs] if isinstance(runs, Run | Path | str) else runs)
    ]
    target = place(opened, path)
    if images < 0:
        raise AtclError(f"a gallery has at least 0 images, not {images}")
    resolve(device)  # an unknown device is refused before any work
    galleries = {
        run.folder: gallery_of(run, len(opened), images, device, data_dir, build, test, notify)
        if gallery
        else Gallery(None, NOT_ASKED)
        for run in opened
    }
    write(page(opened, galleries), target)
    return target


NOT_ASKED = "The page was asked for without images."
SPREADS = (
    "Accuracies are percentages of the test set. After several seeds ± is their standard deviation "
    "(ddof = 0); in the curves, and after what held-out labels tell of one run, it is a standard error."
)


def place(runs: Sequence[Run], path: Path | str | None) -> Path:
    """Return the path of a page; refuse one that cannot be written, before any work is done."""
    if not runs:
        raise AtclError("name at least one run to report on")
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise AtclError("the same run is named twice: name each once")
    target = (
        Path(path)
        if path is not None
        else runs[0].folder / layout.REPORT
        if len(runs) == 1
        else Path(layout.REPORT)
    )
    if target.is_dir():
        raise AtclError(f"{target} is a folder: give the page a name, such as {target / layout.REPORT}")
    if not target.parent.is_dir():
        raise AtclError(f"{target} cannot be written: {target.parent} is no folder")
    return target


def gallery_of(
    run: Run,
    among: int,
    images: int,
    device: str,
    data_dir: Path | None,
    build: Build | None,
    test: Split | None,
    notify: Notify,
) -> Gallery:
    """Return the gallery of one of `among` runs on a page; what the user could change is reported."""
    if among > RUNS:
        return Gallery(None, f"A page on more than {RUNS} runs has no images.")
    number = min(images, max(4, 4 * GALLERY_IMAGES // among // 4 * 4))
    try:
        found = predictions_for(run, data_dir=data_dir, device=device, images=number, build=build, test=test)
    except (AtclError, RuntimeError, OSError) as error:  # without room on the GPU there is still a page
        why = str(error).partition("\n")[0].rstrip(".")
        notify(f"{run.folder}: no images on the page: {why}")
        return Gallery(None, f"No images, calibration and confusion: {why}.")
    return Gallery(scenes(found, run.class_names, number, PICTURE_BYTES // among))


def page(runs: Sequence[Run], galleries: "dict[Path, Gallery]") -> str:
    """Return the page as HTML."""
    groups = grouped(runs)
    lines = drawn(groups)
    accuracies = any(panel["id"] == "test_pgd20" for panel in lines["panels"])
    members = [(group, one) for group in groups for one in group.members]
    several = len(members) > 1
    choice = [el("option", _name(group, one), value=number) for number, (group, one) in enumerate(members)]
    pick = (
        el("p", el("label", "Run ", for_="which"), el("select", choice, id="which"), class_="which")
        if several
        else None
    )
    detail = [
        el(
            "div",
            el("h3", _name(group, one), class_="whose") if several else None,
            _shown(galleries[one.run.folder]),
            making(one),
            class_="one",
            data_run=number,
        )
        for number, (group, one) in enumerate(members)
    ]
    body = [
        el(
            "header",
            el("div", el("p", f"atcl {__version__} · report", class_="eyebrow"), _theme(), class_="top"),
            headline(groups),
            _links(several),
            *remarks(groups),
        ),
        el(
            "main",
            results(groups),
            curves(groups, len(lines["panels"]), accuracies),
            section("detail", "One run in detail" if several else "In detail", pick, detail),
        ),
        el("footer", el("p", SPREADS)),
    ]
    style, script = (
        files("atcl.reports").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    data = el("script", embedded(lines), type="application/json", id="data")
    return _document(
        f"{groups[0].label if len(groups) == 1 else 'Comparison'} · atcl report", style, script, [*body, data]
    )


def write(text: str, target: Path) -> None:
    """Write a page; refuse one that is too large to send."""
    content = text.encode()
    if len(content) > LIMIT:
        raise AtclError(
            f"the page would have {len(content):,} bytes, more than {LIMIT:,}: "
            "name fewer runs, or give --images 4 or --no-gallery"
        )
    try:
        write_whole(target, content)
    except OSError as error:
        raise AtclError(f"{target} cannot be written: {error.strerror}") from None


def _document(title: str, style: str, script: str, body: Sequence[Markup]) -> str:
    """Return the whole document, whose policy allows no loading and no script but its own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = [
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", Markup(style)),
    ]
    skip = el("a", "Skip to the results", href="#results", class_="skip")
    return (
        "<!doctype html>\n"
        + el("html", el("head", head), "\n", el("body", skip, *body, el("script", Markup(script))), lang="en")
        + "\n"
    )


def _shown(one: Gallery) -> Markup:
    return one.html if one.html is not None else el("p", one.why, class_="remark")


def _name(group: Group, one: RunSummary) -> str:
    return f"{group.label}, seed {one.run.seed}"


def _theme() -> Markup:
    return el(
        "button",
        el("span", "Theme: "),
        el("span", "system", id="scheme"),
        type="button",
        id="theme",
        title="Light, dark, or as the system has it",
    )


def _links(several: bool) -> Markup:
    parts = (
        ("results", "Results"),
        ("curves", "Curves"),
        ("detail", "One run in detail" if several else "Images and details"),
    )
    return el(
        "nav", [el("a", words, href=f"#{name}") for name, words in parts], aria_label="Parts of the page"
    )
