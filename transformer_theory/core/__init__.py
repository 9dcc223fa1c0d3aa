"""The types that every part of the library shares: measurements, claims, ladders, metrics, experiments, results, theories."""
