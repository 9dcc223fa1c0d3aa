"""Longer texts of the help of the commands."""

EXIT_CODES = (
    "exit codes: 0 success; 1 a claim is violated, a control does not fail, or a computation did not "
    "converge; 2 the input is invalid, and nothing is written; 130 interrupted"
)

VERIFY_JSON = (
    "The JSON document has the keys format (2), claims and provenance. Each entry of claims has id, "
    "statement (LaTeX), measures, source {key, locator, status}, assumptions, corrects, corrected (like "
    "source; absent if nothing is corrected), control_description, verdict, outcome, consistent, decided, "
    "share, interval (95 %), worst, threshold, op, median, control {verdict, value} and seeds, a list of the "
    "evidence from the check and the control. Numbers that are not finite are null."
)

REPORT_MORE = (
    "Runs that differ only in their seed are combined into a mean and an interval. If no output option is "
    "given, DIR must be a single result, whose page (report.html) or figure (figure.svg) is written into "
    "DIR again. If a result cannot be read, or a file exists already, no output is written at all. "
    "--overwrite replaces only the files that this command writes; it deletes nothing else."
)

MEASURE_MORE = (
    "A folder is only read: nothing is downloaded, no code of it runs, and pickled weights are refused. "
    "A name is looked up in the cache that HF_HUB_CACHE or HF_HOME states; `hf download NAME` fills it. "
    "FILE.py is your own program and is executed. Its FUNCTION takes no arguments and returns the network, "
    "(network, inputs) or (network, inputs, labels): ids [n, seq], images [n, c, h, w] or tokens [n, seq, "
    "dim], or a dictionary of inputs by the name of the argument. "
    "Several models are measured one after another, those of images on --data, those of ids on --text, each "
    "in a folder of DIR with its name; a page of all stands in DIR. A folder that is complete is not "
    "measured again."
)
