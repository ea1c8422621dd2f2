"""The page of a path: what is in it, and that it plays in a browser."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from browser import WIDTHS

import pushforward as pf

pytestmark = pytest.mark.unhooked


def on_sphere(n=40):
    eye = torch.eye(3)
    field = pf.fields.SelfAttention(5 * eye, eye, eye, manifold=pf.Sphere())
    generator = torch.Generator().manual_seed(0)
    mu = pf.Measure(torch.randn(n, 3, generator=generator), torch.rand(n, generator=generator))
    mu = mu.push(pf.Sphere().retract)
    return pf.flow(field, mu, t1=6.0, solver=pf.RK4(steps=60), save=60)


def data(page):
    """What the script of a page is given."""
    found = re.search(r'<script type="application/json" id="film">(.*?)</script>', page, re.S)
    return json.loads(found[1])


def unpacked(film):
    """The points of the key frames, decoded as the script does."""
    packed = np.frombuffer(base64.b64decode(film["points"]), "<u2").astype(float)
    packed = packed.reshape(len(film["times"]), len(film["box"]), film["n"]) / 65535
    x = [low + (high - low) * packed[:, k] for k, (low, high) in enumerate(film["box"])]
    if film["kind"] != "sphere":
        return np.stack(x, -1)
    a, b = x
    c = 1 - abs(a) - abs(b)
    inner, sign = c >= 0, lambda t: np.where(t < 0, -1, 1)
    a, b = np.where(inner, a, (1 - abs(b)) * sign(a)), np.where(inner, b, (1 - abs(a)) * sign(b))
    x = np.stack([a, b, c], -1)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_positions_and_masses_survive_16_bits():
    """At the key frames, points on the sphere are where they were to 1e-4 and masses to 1e-5."""
    path = on_sphere()
    film = data(path.to_html())
    assert film["kind"] == "sphere" and 2 < len(film["times"]) <= 24
    at = [path.times.tolist().index(t) for t in film["times"]]
    exact = np.stack([path[k].atoms.numpy() for k in at])
    assert np.abs(unpacked(film) - exact).max() < 1e-4
    masses = np.frombuffer(base64.b64decode(film["masses"]), "<u2") * film["top"] / 65535
    assert np.abs(masses - path[0].normalise().weights.numpy()).max() < 1e-5
    assert film["curves"][0]["values"][-1] == pytest.approx(path.energy()[-1].item())


@pytest.mark.parametrize("name,kind,axes", [
    ("line", "line", ["x"]), ("plane", "plane", ["x₁", "x₂"]), ("circle", "plane", ["x₁", "x₂"]),
    ("angle", "line", ["θ"]), ("torus", "plane", ["θ₁", "θ₂"]),
    ("oscillators", "plane", ["θ", "ω"]), ("phase", "plane", ["x", "v"]),
    ("flock", "plane", ["x₁", "x₂"]),
    ("many", "plane", ["first principal axis", "second principal axis"]),
])  # fmt: skip
def test_every_space_is_drawn_under_its_names(name, kind, axes):
    """The scene of each space, where its points are, and films of it."""
    eye = torch.eye(2)
    field, dim = {
        "line": (pf.Pointwise(lambda x: -x), 1), "plane": (pf.Pointwise(lambda x: -x), 2),
        "circle": (pf.fields.SelfAttention(eye, eye, eye, manifold=pf.Sphere()), 2),
        "angle": (pf.fields.Kuramoto(1.0), 1), "torus": (pf.fields.Kuramoto(1.0, dim=2), 2),
        "oscillators": (pf.fields.Kuramoto(1.0, frequencies=True), 2),
        "phase": (pf.fields.CuckerSmale(), 2), "flock": (pf.fields.CuckerSmale(), 4),
        "many": (pf.Pointwise(lambda x: -x), 5),
    }[name]  # fmt: skip
    mu = pf.Measure(torch.randn(12, dim))
    if name == "circle":
        mu = mu.push(pf.Sphere().retract)
    path = pf.flow(field, mu, t1=1.0, solver=pf.RK4(steps=8), save=8)
    film = data(path.to_html())
    assert (film["kind"], film["axes"]) == (kind, axes) and len(film["times"]) <= 9
    figure = path.plot()
    named = figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    assert named == (("t", *axes) if kind == "line" else tuple(axes))
    if name in ("line", "plane", "circle", "phase", "flock"):
        last = path[-1].atoms.numpy()[:, : len(axes)]
        assert np.abs(unpacked(film)[-1] - last).max() < 1e-3


def test_key_frames_follow_what_happens():
    """Of a path that jumps once, the key frames are those around the jump."""
    places = np.where(np.arange(100) < 70, 0.0, 1.0)[:, None, None] + np.zeros((100, 3, 1))
    scene = pf.pictures.Scene("line", ("x",), np.arange(100.0), places, np.ones(3) / 3,
                              periods=(None,))  # fmt: skip
    keys = pf.pictures.key_frames(scene, 6)
    assert {0, 69, 70, 99} <= set(keys) and len(keys) == 6
    assert pf.pictures.interpolation_errors(scene, keys).max() == 0


def test_interpolation_goes_along_circles_and_the_short_way_round():
    quarter = np.array([[1.0, 0, 0]]), np.array([[0, 1.0, 0]])
    times, masses = np.arange(2.0), np.ones(1)
    ball = pf.pictures.Scene("sphere", ("x", "y", "z"), times, np.stack(quarter), masses, 1.0,
                             (None,) * 3)  # fmt: skip
    third = ball.between(*quarter, np.asarray(1 / 3))
    assert np.allclose(third, [[np.cos(np.pi / 6), np.sin(np.pi / 6), 0]])
    angle = pf.pictures.Scene("line", ("θ",), times, np.zeros((2, 1, 1)), masses, None, (1.0,))
    assert np.allclose(angle.between(np.array([0.9]), np.array([0.1]), np.asarray(0.5)), 1.0)


def test_a_page_of_ten_thousand_points_is_small():
    """Three times as many points are drawn as a sample, and two megabytes are enough."""
    mu = pf.Measure(torch.randn(30_000, 2))
    path = pf.flow(pf.Pointwise(lambda x: -x), mu, t1=1.0, solver=pf.Euler(steps=30), save=30)
    page = path.to_html(curves={}, tol=1.0)
    assert data(page)["n"] == 10_000 and data(page)["dense"] and len(page.encode()) < 2_000_000
    assert "30,000, of which 10,000 are drawn" in page


def test_labels_cannot_leave_their_place(tmp_path):
    """HTML and script in a title and in the name of a curve are shown as they are."""
    path, evil = on_sphere(5), "</script><script>alert(1)</script>"
    path.save(tmp_path / "page.html", title=evil, curves={evil: path.radius()})
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page and page.count("</script>") == 3
    with pytest.raises(ValueError, match=r"must end in \.html"):
        path.save(tmp_path / "page.gif")
    with pytest.raises(ValueError, match="a number for each of 61 times"):
        path.to_html(curves={"radius": path.radius()[1:]})
    with pytest.raises(ValueError, match="must be finite"):
        path.to_html(curves={"radius": path.radius() / 0})
    assert [f.name for f in tmp_path.iterdir()] == ["page.html"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "page.html"
    on_sphere(200).save(file)
    return file


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_plays(browse, file, width, dark):
    """The slider, the keys, a drag and the moments move points; nothing sticks out or is asked."""
    view = browse(file, width=width, dark=dark)
    page = view.page
    points = lambda: np.array(page.evaluate("film.points()"))
    now = lambda: page.inner_text("#now")
    begin = points()
    assert begin.shape == (2, 200) and now() == "time 0.00 of 6.00"
    page.focus("#time")
    page.keyboard.press("ArrowRight")
    assert now() != "time 0.00 of 6.00" and np.abs(points() - begin).max() > 0.1
    page.keyboard.press("End")
    assert now() == "time 6.00 of 6.00" and np.abs(points() - begin).max() > 20
    ends = points()
    page.focus("#cloud")
    page.keyboard.press("ArrowLeft")
    assert now() == "time 6.00 of 6.00" and np.abs(points() - ends).max() > 1  # it turned
    page.locator(".curve").first.scroll_into_view_if_needed()
    box = page.query_selector(".curve").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 188 / 340, box["y"] + box["height"] / 2)
    assert abs(float(now().split()[1]) - 3) < 0.1  # the middle of the curve
    page.click("#stills button:nth-child(2)")
    assert now() == "time 1.20 of 6.00"
    page.click("#play")
    page.wait_for_function("document.getElementById('now').textContent > 'time 1.3'")
    page.click("#play")
    ink = page.evaluate(
        """() => { const c = document.getElementById("cloud"), g = c.getContext("2d");
        return g.getImageData(0, 0, c.width, c.height).data.reduce((n, v) => n + (v > 0), 0) }"""
    )
    assert ink > 10_000
    page.click("#theme")
    view.scroll_through()
    view.check()


def test_a_dark_page_is_printed_light(browse, file):
    """Canvases are drawn again in the colours of paper, and the controls are left out."""
    page = browse(file, dark=True).page
    shade = """() => { const c = document.querySelector("#stills canvas");
      return c.getContext("2d").getImageData(150, 150, 1, 1).data[0] }"""
    assert page.evaluate(shade) < 80
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(shade) > 150 and not page.is_visible(".controls")
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(shade) < 80 and page.is_visible(".controls")


def test_frames_are_timed_by_the_page(browse, file):
    """The hook that measures drawing gives a time for every frame it draws."""
    found = browse(file).page.evaluate("film.frameTimes(8)")
    assert found["points"] == 200 and 0 < found["median"] <= found["most"]
