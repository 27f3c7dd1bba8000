"""What a sweep will take, before it starts: cells, tokens, memory and time; nothing is written.

`cells` expands the sweep, `work` reads the real prompts, `cost` is arithmetic on them, `speed` measures a model for
a few seconds, `table` shows it all.
"""
