import io

import numpy as np
import pytest
from PIL import Image

from pce_jax import plots


def size(draw, *args, **settings):
    file = io.BytesIO()
    draw(*args, file, **settings)
    return Image.open(file).size


def test_known_methods_keep_their_look():
    alone, among = plots.styles(["sink"]), plots.styles(["x", "naive", "sink", "y"])
    assert alone["sink"] == among["sink"]
    assert len({look["color"] for look in among.values()}) == 4
    many = plots.styles(str(number) for number in range(12))
    assert len({tuple(sorted(look.items())) for look in many.values()}) == 12


def test_heat_map():
    values = np.arange(12.0).reshape(3, 4)
    width, height = size(plots.heat_map, values, "title")
    assert width > height
    values[0, 0] = np.nan
    assert size(plots.heat_map, values, "title", diverging=True)[1] > height  # says what grey is
    assert size(plots.heat_map, np.full((2, 2), np.nan), "all masked")
    with pytest.raises(ValueError, match=r"\[layers, heads\]"):
        size(plots.heat_map, np.zeros(3), "title")


def test_heat_maps_side_by_side():
    maps = {str(number): np.full((3, 4), float(number)) for number in range(3)}
    maps["2"][0, 0] = np.nan
    two = {name: maps[name] for name in "01"}
    assert size(plots.heat_maps, maps, "title")[0] > size(plots.heat_maps, two, "title")[0]
    assert size(plots.heat_maps, {"none": np.full((2, 2), np.nan)}, "title")


@pytest.mark.parametrize("boundaries", [[], [30], [10, 20, 30], list(range(2, 31, 2))])
def test_position_curve(boundaries):
    series = {"full": np.arange(40.0), "naive": np.r_[np.nan, np.arange(39.0)]}
    assert size(plots.position_curve, series, boundaries, smooth=4) == (1500, 660)


def test_running_mean_stays_inside_pieces():
    values = np.array([0, 2, 4, 10, np.nan, 30])
    found = plots._running_mean(values, [3], 3)
    np.testing.assert_allclose(found, [1, 2, 3, 10, np.nan, 30])
