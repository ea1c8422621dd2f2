"""Pictures: relations and moving clouds by matplotlib, charts of pages by Plotly."""

from ._charts import (
    BLUE as BLUE,
    GREY as GREY,
    RED as RED,
    dots as dots,
    guide as guide,
    log as log,
    plot as plot,
    ticks as ticks,
)
from ._figures import (
    animate as animate,
    graph as graph,
    heatmap as heatmap,
    rates as rates,
    trajectories as trajectories,
    transported as transported,
)
from ._page import page as page
