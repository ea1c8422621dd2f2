"""Observables against brute force, and pictures of paths."""

import math

import pytest
import torch
from cases import measure, worst

import pushforward as pf
from pushforward import flows


def brute_clusters(x, tol):
    """Connected components by repeated products of the graph."""
    reach = (torch.cdist(x, x) <= tol).double()
    for _ in range(len(x).bit_length() + 1):
        reach = (reach @ reach > 0).double()
    return reach > 0


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("tol", [0.05, 0.2, 0.8])
def test_clusters(d, tol):
    torch.manual_seed(d)
    x = torch.cat([torch.rand(80, d), 0.01 * torch.rand(30, d) + 0.5])
    found = flows.clusters(pf.Measure(x), tol)
    same = found[:, None] == found[None, :]
    assert torch.equal(same, brute_clusters(x, tol))
    sizes = found.bincount()
    assert (sizes.diff() <= 0).all()  # numbered by falling mass


def test_a_collapsed_cloud_is_one_cluster():
    """A hundred thousand atoms in one place are one node, not five billion pairs."""
    x = 1e-4 * torch.randn(100_000, 3)
    assert flows.clusters(pf.Measure(x), 0.01).max() == 0


def test_atoms_without_mass_are_in_no_cluster():
    mu = pf.Measure(torch.tensor([[0.0], [9.0], [0.1]]), torch.tensor([1.0, 0.0, 2.0]))
    assert flows.clusters(mu, 0.5).tolist() == [0, -1, 0]


def test_diameter_and_radius():
    x = torch.randn(2, 50, 3)
    assert worst(flows.diameter(x), torch.cdist(x, x).amax((-1, -2))) < 1e-7
    assert worst(flows.radius(pf.Measure(x)), x.norm(dim=-1).amax(-1)) == 0


def test_order():
    angles = torch.rand(20, 2)
    mu = pf.Measure(angles, torch.rand(20))
    w = mu.normalise().weights[:, None]
    exact = (w * torch.exp(1j * angles)).sum(0).abs().mean()
    assert worst(flows.order(mu, pf.Torus()), exact) < 1e-14
    assert worst(flows.order(mu, pf.Torus(1.0)),
                 (w * torch.exp(2j * math.pi * angles)).sum(0).abs().mean()) < 1e-14  # fmt: skip
    one = pf.Measure(torch.ones(3, 2))
    assert worst(flows.order(one), torch.tensor(1.0)) < 1e-15


@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.Sinkhorn(tol=1e-10)], ids=repr)
def test_attention_entropy(normaliser):
    field, mu = pf.Attention(2, heads=3, normaliser=normaliser), measure(8)
    relation = field.relation(mu)
    kappa = relation.matrix()
    kappa = kappa / kappa.sum(-1, keepdim=True)
    rows = -(kappa * kappa.log()).sum(-1).mean(0)
    exact = (mu.normalise().weights * rows).sum()
    assert worst(flows.attention_entropy(field, mu)[0], exact) < 1e-12
    with pytest.raises(TypeError, match="rows that are probabilities"):
        flows.attention_entropy(pf.Attention(2, normaliser=pf.relations.Sigmoid()), mu)


def test_path_observables():
    field, mu = pf.Attention(2), measure(8)
    path = pf.flow(field, mu, t1=1.0, solver=pf.RK4(10), save=5)
    assert path.attention_entropy().shape == (6, 1)
    assert path.velocity_diameter().shape == (6,) and path.diameter().shape == (6,)
    assert path.wasserstein(mu.normalise())[0] > 0 or mu.mass == 1
    assert worst(path.wasserstein(path[0])[0], torch.tensor(0.0)) < 1e-12
    assert path.clusters(0.1).shape == (6, 8) and path.cluster_count(100.0).tolist() == [1] * 6
    means, covariances = path.moments()
    assert worst(means[-1], path[-1].mean()) == 0 and covariances.shape == (6, 2, 2)
    assert path.map(lambda m: m.mass).shape == (6,)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_pictures_of_a_path(tmp_path, d):
    mu = pf.Measure(torch.randn(9, d), torch.rand(9))
    path = pf.flow(pf.Pointwise(lambda x: -x), mu, t1=1.0, solver=pf.Euler(10), save=10)
    path.plot().savefig(tmp_path / "path.png")
    suffix = {1: "gif", 2: "webp", 3: "gif"}[d]
    path.animate(tmp_path / f"path.{suffix}", seconds=1.0)
    with pytest.raises(ValueError, match=r"`file` must end in .gif, .webp or .mp4"):
        path.animate(tmp_path / "path.avi")
    from PIL import Image

    with Image.open(tmp_path / f"path.{suffix}") as film:
        assert film.format == suffix.upper() and film.n_frames == 11
    assert {f.name for f in tmp_path.iterdir()} == {f"path.{suffix}", "path.png"}


def test_a_film_in_mp4_needs_ffmpeg(tmp_path, monkeypatch):
    """With it there is a film, without it an error that says what to do."""
    from matplotlib.animation import FFMpegWriter

    mu = pf.Measure(torch.randn(9, 3)).push(pf.Sphere().retract)
    eye = torch.eye(3)
    field = pf.fields.SelfAttention(eye, eye, eye, manifold=pf.Sphere())
    path = pf.flow(field, mu, t1=1.0, solver=pf.Euler(2), save=2)
    if FFMpegWriter.isAvailable():
        path.animate(tmp_path / "path.mp4", seconds=1.0)
        assert (tmp_path / "path.mp4").read_bytes()[4:8] == b"ftyp"
    monkeypatch.setattr(FFMpegWriter, "isAvailable", lambda: False)
    with pytest.raises(RuntimeError, match="needs the program ffmpeg"):
        path.animate(tmp_path / "other.mp4")
    assert not (tmp_path / "other.mp4").exists()


def test_areas_of_marks_are_masses():
    """Points that coincide are one mark; what is apart stays apart; no mass is lost."""
    from pushforward.pictures._scene import joined

    points = torch.tensor([[0.0, 0], [0, 0.0005], [1, 1], [0, 0]]).numpy()
    masses = torch.tensor([0.1, 0.2, 0.3, 0.4]).numpy()
    places, weights = joined(points, masses, 0.004)
    assert weights.tolist() == pytest.approx([0.7, 0.3]) and places[1].tolist() == [1, 1]
    mu = pf.Measure(torch.zeros(3, 2), torch.tensor([1.0, 1.0, 2.0]))
    figure = pf.flow(pf.Pointwise(lambda x: x), mu, t1=1.0, solver=pf.Euler(1)).plot()
    (mark,) = [
        c for c in figure.axes[0].collections if c.get_gid() == "marks" and len(c.get_offsets())
    ]
    assert len(mark.get_offsets()) == 1


def test_a_study_draws():
    study = pf.flows.Study("depth", (8, 16, 32), (0.4, 0.2, 0.1), -1.0)
    assert study.rate == pytest.approx(-1) and study.ratios == pytest.approx((2, 2))
    study.plot()
    assert "rate -1.000, theory -1" in str(study)


def test_entropy_of_a_batch():
    field, parts = pf.Attention(2), [measure(5), measure(8)]
    both = flows.attention_entropy(field, pf.Measure.stack(parts))
    for k, part in enumerate(parts):
        assert worst(both[k], flows.attention_entropy(field, part)) < 1e-13
    with pytest.raises(ValueError, match="Leaders are of one measure"):
        flows.leaders(field, pf.Measure.stack(parts))
    with pytest.raises(TypeError, match="must have attention inside"):
        flows.leaders(pf.MLP(2, 3), parts[0])
