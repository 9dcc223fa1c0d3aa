"""Sources that several files of claims cite: the paper for the setting of our own statements, or for one
whose number was not found.
"""

from ....core.sources import Source

OWN = Source("tian2024joma", status="own")
NOT_FOUND = Source("tian2024joma", status="not found")
