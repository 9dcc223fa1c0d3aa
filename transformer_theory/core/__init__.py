"""What every part of the library speaks: measurements, claims, ladders, metrics, experiments, results, theories. Imports nothing else of it."""
