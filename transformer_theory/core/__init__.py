"""The types that all parts of the library share: measurements, claims, ladders, metrics, experiments, results
and theories.
"""
