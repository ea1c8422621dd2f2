"""Tools that several chapters use."""

import pytest
import torch

from pushforward._tools.output import atomic_file
from pushforward._tools.warn import PushforwardWarning, warn

pytestmark = pytest.mark.unhooked


def test_a_warning_points_at_the_first_line_outside_the_library():
    """Through a module of PyTorch too."""

    class Layer(torch.nn.Module):
        def forward(self):
            warn("slow")

    for call in (lambda: warn("slow"), Layer()):
        with pytest.warns(PushforwardWarning, match="slow") as seen:
            call()
        assert seen[0].filename == __file__


def test_a_warning_that_no_test_expects_is_an_error():
    with pytest.raises(PushforwardWarning, match="slow"):
        warn("slow")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "numbers.txt"
    for text, fails in (("one", False), ("two", True)):
        try:
            with atomic_file(file) as draft:
                draft.write_text(text)
                if fails:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        assert file.read_text() == "one"
    assert list(tmp_path.iterdir()) == [file]
