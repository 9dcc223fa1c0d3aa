"""One name and one colour for each of the dynamics and each kind of token, in all pictures of the room."""

from ....core.plotting import COLOURS
from ..flow import CLOSED, EXACT, LEMMA4, MODIFIED

DYNAMICS = {EXACT: "#440154", MODIFIED: "#2b758e", LEMMA4: "#6ece58", CLOSED: COLOURS["raw"]}  # the first three: shades(3)
TOKENS = {"distinct": COLOURS["scan_snap"], "common": "#882255", "other": COLOURS["null"]}
