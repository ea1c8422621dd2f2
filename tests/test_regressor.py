"""MeasureRegressor: what it predicts, scores and keeps, what it refuses, and scikit-learn."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

import pushforward as pf
from pushforward.fitting import NotFittedError, _regressor
from pushforward.fitting.problems import Scale
from pushforward.fitting.problems._tasks import some, taken

TINY = {"depth": 1, "heads": 1, "width": 8}
STILL = {**TINY, "steps": 1, "lr": 1e-12}
"""One step that changes nothing."""


def cloud(n, dim=2, seed=0):
    """Random points with random weights, of mass 2."""
    generator = torch.Generator().manual_seed(seed + 17 * n)
    x = torch.randn(n, dim, generator=generator)
    return pf.Measure(x, 2 * torch.rand(n, generator=generator).softmax(-1))


def shifted(mu, dose):
    return mu.push(lambda x: x + dose * torch.tensor([1.0, -2.0]))


DOSES = [0.0, 1.0, 2.0, 3.0]


@pytest.fixture(scope="module")
def pairs():
    """Sources and targets of unequal sizes, the targets shifted by the dose."""
    torch.set_default_dtype(torch.float64)
    sources = [cloud(n, seed=1) for n in (12, 30, 17, 25)]
    targets = [
        shifted(mu, dose).split([0.5, 0.5], atom=0)
        for mu, dose in zip(sources, DOSES, strict=True)
    ]
    return sources, targets


@pytest.fixture(scope="module")
def fitted(pairs):
    reg = pf.MeasureRegressor(depth=1, heads=2, width=16, steps=30, lr=0.05)
    return reg.fit(*pairs, DOSES)


# What it predicts


def test_a_dose_between_those_of_training_is_predicted(fitted):
    """Unpaired targets, unequal sizes, weights: a new measure at a new dose."""
    mu = cloud(40, seed=5)
    assert fitted.score([mu], [shifted(mu, 1.5)], [1.5]) > 0.8
    assert fitted.score([mu], [shifted(mu, 1.5)], [3.0]) < 0.6, "the dose is used"


@pytest.mark.parametrize("conditions", [None, [[1e6, 0.0], [3e6, 0.0], [2e6, 0.0], [5e6, 0.0]]])
def test_before_training_no_atom_moves(pairs, conditions):
    """The network begins as the identity, whatever the units; weights, order and times stay."""
    sources = [
        pf.Measure(1e5 + 1e3 * mu.atoms, mu.weights, times=torch.arange(mu.n)) for mu in pairs[0]
    ]
    targets = [mu.push(lambda x: x - 5e4) for mu in sources]
    reg = pf.MeasureRegressor(**STILL).fit(sources, targets, conditions)
    for mu, image in zip(sources, reg.predict(sources, conditions), strict=True):
        assert torch.allclose(image.atoms, mu.atoms, rtol=1e-9)
        assert torch.equal(image.log_weights, mu.log_weights)
        assert torch.equal(image.times, mu.times)
    assert abs(reg.score(sources, targets, conditions)) < 1e-6


def test_score_is_the_share_of_the_way_in_w1(pairs):
    """On the line, against SciPy's distances."""
    line = lambda mu: mu.push(lambda x: x[:, :1] ** 3)
    sources, targets = ([line(mu) for mu in part] for part in pairs)
    reg = pf.MeasureRegressor(**TINY, steps=5, lr=0.05).fit(sources, targets)
    w1 = lambda a, b: wasserstein_distance(a.atoms[:, 0], b.atoms[:, 0], a.weights, b.weights)
    images = reg.predict(sources)
    error, way = (sum(map(w1, start, targets)) for start in (images, sources))
    assert reg.score(sources, targets) == pytest.approx(1 - error / way, abs=1e-10)
    double = [pf.Measure(nu.atoms, 2 * nu.weights) for nu in targets]
    assert reg.score(sources, double) == pytest.approx(1 - error / way, abs=1e-10)


def test_chunks_change_nothing(fitted, monkeypatch):
    """All at once, one by one, and in the order given."""
    many = [cloud(n) for n in (9, 3, 20, 3, 11)]
    doses = torch.linspace(0, 3, 5)
    together = fitted.predict(many, doses)
    monkeypatch.setattr(_regressor, "ATOMS", 12)
    for k, (a, b) in enumerate(zip(together, fitted.predict(many, doses), strict=True)):
        alone = fitted.predict(many[k : k + 1], doses[k : k + 1])[0]
        assert torch.allclose(a.atoms, b.atoms) and torch.allclose(a.atoms, alone.atoms)
        assert a.n == many[k].n
    assert [*_regressor._chunks([5, 1, 4, 2])] == [[1, 3, 2], [0]]
    assert [*_regressor._chunks([13, 99])] == [[0], [1]]


def test_a_measure_is_predicted_however_it_is_written(fitted):
    """Split atoms, another mass, and atoms without mass that are not even numbers."""
    mu = cloud(10)
    nan = torch.cat([mu.atoms, torch.full((1, 2), torch.nan)])
    other = pf.Measure(nan, torch.cat([3 * mu.weights, torch.zeros(1)]))
    image = fitted.predict([mu], [1.0])[0]
    for same in (mu.split(3), other):
        found = fitted.predict([same], [1.0])[0].strip()
        assert found.normalise().allclose(image.normalise(), rtol=1e-9)


def test_predictions_have_the_dtype_of_the_measures(fitted):
    image = fitted.predict([cloud(10).float()], [1.0])[0]
    assert image.dtype == torch.float32
    assert torch.allclose(image.double().atoms, fitted.predict([cloud(10)], [1.0])[0].atoms)


def test_pairs_of_atoms_and_another_space():
    """Paired targets in another dimension: the image of each atom is known."""
    sources = [cloud(n) for n in (10, 14, 12)]
    targets = [mu.push(lambda x: x.sum(-1, keepdim=True)) for mu in sources]
    reg = pf.MeasureRegressor(
        depth=1, heads=1, width=16, steps=50, lr=0.03, loss=pf.fitting.Paired()
    ).fit(sources, targets)
    image = reg.predict(sources[:1])[0]
    error = (image.atoms - targets[0].atoms).square().mean() / targets[0].atoms.square().mean()
    assert image.dim == 1 and error < 0.1
    with pytest.raises(ValueError, match=r"`targets` must be measures in R\^2 like the sources"):
        reg.score(sources, targets)


def test_the_seed_decides_everything(pairs):
    """The same bits, whatever the state of PyTorch's generator, which is left as it was."""
    found = []
    for seed, state in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(state)
        expected = torch.rand(1)
        torch.manual_seed(state)
        reg = pf.MeasureRegressor(**TINY, steps=3, atoms=9, seed=seed).fit(*pairs)
        assert torch.equal(torch.rand(1), expected)
        found.append(reg.predict(pairs[0])[0].atoms)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


# Its parts


def test_scale_is_that_of_the_mixture():
    """Measures count equally, whatever their sizes and masses; constants keep their unit."""
    a = pf.Measure(torch.tensor([[0.0, 7e8], [torch.nan, 7e8]]), torch.tensor([5.0, 0.0]))
    b = pf.Measure(torch.tensor([[2.0, 7e8], [6.0, 7e8]]))
    scale = Scale.of([a, b])
    assert torch.allclose(scale.mean, torch.tensor([2.0, 7e8]))
    assert torch.allclose(scale.size, torch.tensor([6.0**0.5, 1.0]))  # (4 + (0 + 16) / 2) / 2
    x = torch.randn(3, 2)
    assert torch.allclose(scale.back(scale.into(x)), x, atol=1e-6)
    assert scale.standardised(a).atoms.isfinite().all()


def test_thinning_is_unbiased_and_even():
    """Atom i is taken m a_i times on average, and never off by one or more."""
    weights = torch.tensor([0.02, 0.0, 0.3, 0.08, 0.25, 0.15, 0.2])
    mu = pf.Measure(torch.arange(7.0)[:, None], 3 * weights)
    generator = torch.Generator().manual_seed(0)
    counts = torch.stack(
        [torch.bincount(some(mu, 5, generator), minlength=7) for _ in range(4000)]
    ).double()
    assert (counts.sum(-1) == 5).all()
    assert ((counts - 5 * weights).abs() < 1).all()
    # The standard deviation of a count is at most 1/2, so that of the mean at most 0.008.
    assert (counts.mean(0) - 5 * weights).abs().max() < 4 * 0.008
    few = taken(mu, some(mu, 5, generator))
    assert few.n == 5 and torch.allclose(few.mass, mu.mass)
    assert some(mu, 7, generator) is None
    assert len(some(pf.Measure(torch.randn(50, 1)), 49, generator).unique()) == 49


@pytest.mark.parametrize("loss", [pf.fitting.Paired(), pf.fitting.EnergyDistance()])
def test_thinned_pairs_stay_together_if_they_are_pairs(loss):
    mu = cloud(50)
    task = pf.fitting.FromPairs([(mu, mu.push(lambda x: x + 1))], loss, atoms=8)
    source, target = task.batch(torch.Generator().manual_seed(0), 0)
    assert source.n == target.n == 8
    assert torch.equal(source.atoms + 1, target.atoms) == loss.paired
    other, _ = task.batch(torch.Generator().manual_seed(1), 0)
    assert not torch.equal(source.atoms, other.atoms), "anew in each step"


# What it refuses


FINE = [cloud(4), cloud(5)]
NAN = pf.Measure.unchecked(torch.full((3, 2), torch.nan), torch.zeros(3))
EMPTY = pf.Measure.unchecked(torch.zeros(0, 2), torch.zeros(0))
MASSLESS = pf.Measure.unchecked(torch.zeros(3, 2), torch.full((3,), -torch.inf))
BATCH = pf.Measure.stack(FINE)

WRONG = {
    "lengths": ((FINE, FINE[:1], None), {}, "one measure for each of the 2 sources, got 1"),
    "one measure": ((FINE[0], FINE, None), {}, r"`sources` must be a list of .* Write `\[mu\]`"),
    "no measures": (([], [], None), {}, "at least one measure"),
    "points": ((FINE, [x.atoms for x in FINE], None), {}, r"`targets\[0\]` must be a Measure"),
    "a batch": ((FINE, [FINE[0], BATCH], None), {}, r"`targets\[1\]` must be one measure, got a"),
    "dimension": ((FINE, [cloud(4), cloud(4, 3)], None), {}, r"`targets\[1\]` must be in R\^2"),
    "NaN": (([FINE[0], NAN], FINE, None), {}, r"`sources\[1\]` must have finite atoms"),
    "empty": ((FINE, [EMPTY, FINE[0]], None), {}, r"`targets\[0\]` must have atoms with mass"),
    "massless": ((FINE, [MASSLESS, FINE[0]], None), {}, r"`targets\[0\]` must have atoms with"),
    "paired": (
        (FINE, FINE[::-1], None), {"loss": pf.fitting.Paired()},
        r"`targets\[0\]` must have 4 atoms like its source, .* got 5",
    ),
    "conditions, too many": ((FINE, FINE, [1, 2, 3]), {}, r"of the 2 measures, got shape \(3,\)"),
    "conditions, a number": ((FINE, FINE, 1.0), {}, r"`conditions` must be .* got shape \(\)"),
    "conditions, ragged": ((FINE, FINE, [[1], [1, 2]]), {}, "`conditions` must be one number"),
    "conditions, words": ((FINE, FINE, ["low", "high"]), {}, "`conditions` must be one number"),
    "conditions, NaN": ((FINE, FINE, [1, np.nan]), {}, "`conditions` must be .* got NaN"),
    "conditions, empty": ((FINE, FINE, [[], []]), {}, r"`conditions` must .* got shape \(2, 0\)"),
    "depth": ((FINE, FINE, None), {"depth": 0}, "`depth` must be a whole number"),
    "width": ((FINE, FINE, None), {"width": 10, "heads": 4}, "`width` must be a multiple"),
    "loss": ((FINE, FINE, None), {"loss": "W1"}, "`loss` must be a Loss, got str"),
    "a class": (
        (FINE, FINE, None), {"loss": pf.fitting.MMD}, r"got the class MMD. .*`MMD\(\)`"
    ),
}  # fmt: skip


@pytest.mark.unhooked
@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_refused_before_the_first_step(case, monkeypatch):
    monkeypatch.setattr(_regressor, "fit", lambda *a, **k: pytest.fail("training began"))
    given, params, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        pf.MeasureRegressor(**params).fit(*given)


@pytest.mark.unhooked
def test_wrong_predictions_are_refused(fitted, pairs):
    mu = cloud(3)
    for given, message in (
        (([cloud(3, 3)], [1.0]), r"`new` must be measures in R\^2 like the sources"),
        (([mu], None), "`conditions` must be 1 number for each measure, as in training, got None"),
        (([mu], [[1.0, 2.0]]), "must be 1 number for each measure, .* got 2 numbers"),
        (([NAN], [1.0]), r"`new\[0\]` must have finite atoms"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.predict(*given)
    with pytest.raises(ValueError, match="`targets` must differ from the sources"):
        fitted.score([mu], [mu], [1.0])


def test_nothing_works_before_fit(tmp_path):
    reg = pf.MeasureRegressor()
    for call in (
        lambda: reg.predict(FINE), lambda: reg.score(FINE, FINE), lambda: reg.save(tmp_path)
    ):  # fmt: skip
        with pytest.raises(NotFittedError, match=r"not fitted yet. Call `fit\(sources, targets"):
            call()


# scikit-learn


class Centred(TransformerMixin, BaseEstimator):
    """A step of a pipeline that takes lists of measures."""

    def fit(self, X, y=None):
        self.mean_ = torch.stack([mu.mean() for mu in X]).mean(0)
        return self

    def transform(self, X):
        return [mu.push(lambda x: x - self.mean_) for mu in X]


def test_parameters_are_those_of_scikit_learn():
    loss = pf.fitting.MMD(2.0)
    reg = pf.MeasureRegressor(depth=2, loss=loss)
    assert reg.get_params()["loss"] is loss and reg.get_params()["depth"] == 2
    assert reg.set_params(width=8, seed=3) is reg and reg.width == 8 and reg.seed == 3
    with pytest.raises(ValueError, match="no argument `epochs`. It has: depth, heads"):
        reg.set_params(depth=5, epochs=3)
    assert reg.depth == 2, "nothing is set if something is wrong"
    assert repr(reg) == "MeasureRegressor(depth=2, width=8, loss=MMD(bandwidth=2.0), seed=3)"


def test_a_clone_has_the_parameters_and_is_not_fitted(fitted):
    again = clone(fitted)
    assert again.get_params() == fitted.get_params() and again is not fitted
    assert not [name for name in vars(again) if name.endswith("_")]
    assert fitted.n_features_in_ == 2 and fitted.n_conditions_ == 1 and is_regressor(fitted)


def test_pipelines_and_searches_take_lists_of_measures(pairs):
    sources, targets = pairs
    pipe = make_pipeline(Centred(), pf.MeasureRegressor(**STILL))
    pipe.fit(sources, targets)
    assert [mu.n for mu in pipe.predict(sources)] == [mu.n for mu in sources]
    assert np.isfinite(pipe.score(sources, targets))
    scores = cross_val_score(pipe, sources, targets, cv=2)
    assert scores.shape == (2,) and np.isfinite(scores).all()
    grid = GridSearchCV(pf.MeasureRegressor(**STILL), {"width": np.array([4, 8])}, cv=2)
    assert grid.fit(sources, targets).best_params_["width"] in (4, 8)


# Files


def test_saved_and_loaded_it_predicts_the_same_bits(fitted, pairs, tmp_path):
    fitted.set_params(loss=pf.fitting.SinkhornDivergence(0.1)).save(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "model.safetensors", "regressor.json"
    ]  # fmt: skip
    again = pf.MeasureRegressor.load(tmp_path / "run")
    assert again.get_params() == fitted.get_params() and again.log_ == fitted.log_
    fitted.set_params(loss=None)
    for a, b in zip(*(r.predict(pairs[0], DOSES) for r in (fitted, again)), strict=True):
        assert torch.equal(a.atoms, b.atoms)
    again.set_params(**{**STILL, "width": np.int64(8)}).fit(*pairs).save(tmp_path / "run")
    assert pf.MeasureRegressor.load(tmp_path / "run").n_conditions_ == 0


def _about(change):
    """A change of the data in regressor.json."""

    def damage(folder):
        file = folder / "regressor.json"
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return damage


DAMAGE = {
    "no JSON": (lambda folder: (folder / "regressor.json").write_text("{"), "is no JSON"),
    "missing": (lambda folder: (folder / "regressor.json").unlink(), "There is no regressor in"),
    "no model": (lambda folder: (folder / "model.safetensors").unlink(), "is missing"),
    "another model": (
        lambda folder: pf.maps.save(torch.nn.Linear(2, 2), folder / "model.safetensors"),
        "is not the network that",
    ),
    "format": (_about(lambda d: d.update(format="x")), "holds no regressor"),
    "params": (_about(lambda d: d["params"].pop("width")), "its `params` must be"),
    "a wrong param": (_about(lambda d: d["params"].update(width=-1)), "is damaged: `width` must"),
    "a class": (
        _about(lambda d: d["params"].update(loss={"class": "os.system"})), "must name one of"
    ),
    "scale": (_about(lambda d: d["scales"]["end"].update(size=[1.0, 0.0])), "sizes positive"),
    "scales": (_about(lambda d: d["scales"].update(end=None)), "'end' must have mean and size"),
    "conditions": (_about(lambda d: d["scales"].update(conditions=None)), "must map points of 2"),
    "log": (_about(lambda d: d.update(log=3)), "its `log` must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_files_are_refused(case, fitted, tmp_path):
    fitted.save(tmp_path)
    damage, message = DAMAGE[case]
    damage(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pf.MeasureRegressor.load(tmp_path)


def test_a_loss_with_code_is_not_saved_and_nothing_is_replaced(fitted, tmp_path):
    class Own(pf.fitting.Loss):
        def between(self, image, target):
            return (image.mean() - target.mean()).square().sum(-1)

    fitted.save(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    fitted.set_params(loss=Own())
    with pytest.raises(TypeError, match="`loss` is a Own, which cannot be saved without code"):
        fitted.save(tmp_path)
    fitted.set_params(loss=None)
    assert before == {p: p.read_bytes() for p in tmp_path.iterdir()}
