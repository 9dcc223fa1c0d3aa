"""Figures and axes that carry the style of :mod:`.plotting`: what is called on them is done in it, whoever calls and whenever.

matplotlib reads its settings late: the place and weight of a title when it is set, the frame of a legend when it is added, the size of a
tick's label when the figure is drawn or saved. So a figure made in a style would lose half of it outside. It is loaded with the first
figure (:func:`.plotting.axes`), since it imports matplotlib.
"""

import inspect

import matplotlib.axes
import matplotlib.figure

from .plotting import style


def in_style(cls: type) -> type:
    """The class with all its public methods but getters, inherited ones too, run in the style."""
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith(("_", "get_")):  # matplotlib asks whether some getters are its own
            setattr(cls, name, style()(method))
    return cls


@in_style
class Axes(matplotlib.axes.Axes):
    """matplotlib's axes in the style of the library."""


@in_style
class Figure(matplotlib.figure.Figure):
    """matplotlib's figure in the style of the library, with such axes in it."""

    def add_subplot(self, *args, **kwargs):
        """As in matplotlib."""
        return super().add_subplot(*args, **_with_axes(kwargs))

    def add_axes(self, *args, **kwargs):
        """As in matplotlib."""
        return super().add_axes(*args, **_with_axes(kwargs))


def _with_axes(kwargs: dict) -> dict:
    """Our axes, if no other kind is asked for."""
    return kwargs if {"projection", "polar"} & kwargs.keys() else {"axes_class": Axes, **kwargs}
