"""The parts of the page that show predictions on the test set: images, calibration, confusion."""

from collections.abc import Sequence

from torch import Tensor

from atcl.reports.looking import (
    BINS,
    Bin,
    Predictions,
    calibration,
    calibration_error,
    chosen,
    confusion,
    magnification,
    outcomes,
    picture,
    side_for,
)
from atcl.reports.markup import Child, Markup, el
from atcl.reports.notes import ball_of
from atcl.reports.parts import scrolled, table

WORDS = {"stays": "stays right", "turned": "becomes wrong", "wrong": "was wrong before"}
MOST_CLASSES = 20  # classes at most of a confusion matrix
TOP = 3  # classes whose probability is shown


def scenes(seen: Predictions, names: Sequence[str], images: int, room: int) -> Markup:
    """Return gallery, calibration and confusion of one run.

    Args:
        seen: predictions on test images.
        names: of the classes.
        images: how many images the gallery shows at most.
        room: how many bytes its pictures take at most, before they are compressed.
    """
    return el("div", _gallery(seen, names, images, room), _calibrations(seen), _confusions(seen, names))


def _gallery(seen: Predictions, names: Sequence[str], images: int, room: int) -> Markup:
    outcome = outcomes(seen)
    places = chosen(outcome, seen.true.tolist(), images)
    zoom, side = magnification(seen, places), side_for(3 * len(places), seen.x.shape[1], room)
    counts = {kind: outcome.count(kind) for kind in WORDS}
    threat = seen.threat
    about = (
        f"{len(outcome):,} of {seen.whole:,} test images were attacked for this page by PGD20 in the "
        f"{ball_of(threat)}, 20 steps of {threat.step_size:.4g} from a random start: {counts['stays']} stay "
        f"right, {counts['turned']} become wrong, {counts['wrong']} were wrong before."
    )
    if places:
        about += f" Differences are magnified {zoom:.3g} times around grey."
    cards = [_card(seen, place, outcome[place], names, zoom, side) for place in places]
    kinds = [kind for kind in WORDS if any(outcome[place] == kind for place in places)]
    filters = [
        el("button", word, type="button", aria_pressed="true" if kind == "all" else "false", data_filter=kind)
        for kind, word in (("all", "all"), *((kind, WORDS[kind]) for kind in kinds))
    ]
    return el(
        "div",
        el("h3", "Adversarial images"),
        el("p", about, class_="fine"),
        el("div", filters, class_="filters", role="group", aria_label="Images shown")
        if len(kinds) > 1
        else None,
        el("ul", cards, class_="gallery") if cards else None,
    )


def _card(seen: Predictions, place: int, kind: str, names: Sequence[str], zoom: float, side: int) -> Markup:
    x, adv, true = seen.x[place], seen.adv[place], int(seen.true[place])
    number = int(seen.index[place])
    difference = 0.5 + (adv - x) * zoom
    views = [
        _view(picture(x, side), f"test image {number}, class {names[true]}", "image"),
        _view(picture(adv, side), f"adversarial image of test image {number}", "adversarial"),
        _view(picture(difference, side), f"difference of the two, magnified {zoom:.3g} times", "difference"),
    ]
    head = el(
        "div", el("strong", names[true]), el("span", WORDS[kind], class_=f"outcome {kind}"), class_="head"
    )
    says = el(
        "div",
        _says("before", seen.natural[place], true, names),
        _says("after", seen.attacked[place], true, names),
        class_="says",
    )
    return el("li", head, el("div", views, class_="views"), says, class_="card", data_kind=kind)


def _view(source: str, alt: str, caption: str) -> Markup:
    return el("figure", el("img", src=source, alt=alt), el("figcaption", caption))


def _says(when: str, probabilities: Tensor, true: int, names: Sequence[str]) -> Markup:
    values, classes = probabilities.topk(min(TOP, len(probabilities)))
    rows = [
        el(
            "li",
            el("span", names[at], class_="right" if at == true else None),
            el("b", f"{100 * value:.0f} %"),
            el("i", style=f"--share:{100 * value:.1f}%"),
            class_="right" if at == true else None,
        )
        for value, at in zip(values.tolist(), classes.tolist(), strict=True)
    ]
    return el("div", el("div", when, class_="name"), el("ol", rows))


def _calibrations(seen: Predictions) -> Markup:
    m = len(seen.attacked)
    parts = [("as they are", seen.natural, seen.true), ("under PGD20", seen.attacked, seen.true[:m])]
    charts = [
        _reliability(f"{len(true):,} images {words}", calibration(found, true))
        for words, found, true in parts
    ]
    about = (
        "Is the accuracy of predictions as high as their confidence? On the dashed line it is; below it the "
        "model is overconfident. Numbers count images."
    )
    return el("div", el("h3", "Calibration"), el("p", about, class_="fine"), el("div", charts, class_="pair"))


def _reliability(words: str, bins: Sequence[Bin]) -> Markup:
    """Return a diagram of accuracy by confidence, and a table of its numbers."""
    width, height, left, right, top, bottom = 420, 230, 34, 14, 18, 34
    across = (width - left - right) / BINS
    tall = height - top - bottom
    shapes: list[Child] = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = top + tall * (1 - share)
        shapes += [
            el("line", x1=left, x2=width - right, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid"),
            el(
                "text", f"{100 * share:.0f}", x=left - 6, y=f"{y + 3.5:.1f}", class_="tick", text_anchor="end"
            ),
        ]
    for one in bins:
        x, y = left + round(one.low * BINS) * across, top + tall * (1 - one.accuracy)
        shapes += [
            el(
                "rect",
                x=f"{x + 1.5:.1f}",
                y=f"{y:.1f}",
                width=f"{across - 3:.1f}",
                height=f"{max(0.8, tall * one.accuracy):.1f}",
                class_="bar",
            ),
            el(
                "text",
                one.images,
                x=f"{x + across / 2:.1f}",
                y=f"{y - 4:.1f}",
                class_="tick",
                text_anchor="middle",
            ),
        ]
    shapes.append(el("line", x1=left, y1=top + tall, x2=width - right, y2=top, class_="ideal"))
    shapes += [
        el(
            "text",
            f"{share}",
            x=f"{left + (width - left - right) * share / 100:.1f}",
            y=height - 18,
            class_="tick",
            text_anchor="middle",
        )
        for share in (0, 50, 100)
    ]
    shapes.append(el("text", "right %", x=2, y=9, class_="tick"))
    shapes.append(
        el(
            "text",
            "confidence %",
            x=f"{(left + width - right) / 2:.1f}",
            y=height - 3,
            class_="tick",
            text_anchor="middle",
        )
    )
    error = 100 * calibration_error(bins)
    label = f"Accuracy by confidence, {words}; expected calibration error {error:.1f} points"
    rows: list[tuple[Child, list[Child]]] = [
        (
            f"{100 * one.low:.0f} to {100 * one.high:.0f}",
            [f"{100 * one.confidence:.1f}", f"{100 * one.accuracy:.1f}", one.images],
        )
        for one in bins
    ]
    numbers = el(
        "details",
        el("summary", "Numbers"),
        table(f"Accuracy by confidence, {words}", ["confidence %", "mean %", "right %", "images"], rows),
    )
    caption = el("figcaption", el("strong", words), f" · calibration error {error:.1f} points")
    return el(
        "figure",
        caption,
        el("svg", shapes, viewBox=f"0 0 {width} {height}", role="img", aria_label=label, class_="chart"),
        numbers,
        class_="panel",
    )


def _confusions(seen: Predictions, names: Sequence[str]) -> Markup:
    m = len(seen.attacked)
    parts = [
        ("as they are", seen.natural.argmax(1), seen.true),
        ("under PGD20", seen.attacked.argmax(1), seen.true[:m]),
    ]
    draw = _matrix if len(names) <= MOST_CLASSES else _mistakes
    tables = [
        draw(f"{len(true):,} images {words}", confusion(predicted, true, len(names)), names)
        for words, predicted, true in parts
    ]
    about = (
        "Each row is a true class, each column a predicted one; numbers count images. The last column is the "
        "share that is right."
    )
    return el(
        "div",
        el("h3", "Confusion by class"),
        el("p", about if draw is _matrix else "The mistakes made most often.", class_="fine"),
        el("div", tables, class_="pair"),
    )


def _matrix(words: str, counts: Tensor, names: Sequence[str]) -> Markup:
    heads = el(
        "tr",
        el("th", el("span", "true class", class_="unseen"), scope="col"),
        [el("th", name, scope="col") for name in names],
        el("th", "right", scope="col"),
    )
    rows = []
    for true, (name, row) in enumerate(zip(names, counts.tolist(), strict=True)):
        total = sum(row)
        cells = [
            el(
                "td",
                count or "",
                class_=None if not count else "hit" if said == true else "miss",
                style=f"--share:{100 * count / total:.0f}%" if count else None,
            )
            for said, count in enumerate(row)
        ]
        rows.append(
            el(
                "tr",
                el("th", name, scope="row"),
                cells,
                el("td", f"{100 * row[true] / total:.0f} %" if total else "—", class_="sum"),
            )
        )
    inside = el("table", el("caption", words), el("thead", heads), el("tbody", rows), class_="confusion")
    return scrolled(inside, f"Confusion, {words}")


def _mistakes(words: str, counts: Tensor, names: Sequence[str]) -> Markup:
    """Return the ten most frequent mistakes, for more classes than a matrix can show."""
    found = sorted(
        ((int(counts[true, said]), true, said) for true, said in counts.nonzero().tolist() if true != said),
        reverse=True,
    )[:10]
    rows: list[tuple[Child, list[Child]]] = [
        (names[true], [names[said], count, int(counts[true].sum())]) for count, true, said in found
    ]
    return scrolled(table(words, ["true class", "predicted", "images", "of"], rows), f"Mistakes, {words}")
