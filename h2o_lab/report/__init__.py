"""One page about a sweep, as a single HTML file: read from stored results, nothing is run."""
