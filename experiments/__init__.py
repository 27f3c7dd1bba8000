"""One script per figure, table or claim of the paper; each records its result in a folder of its own."""
