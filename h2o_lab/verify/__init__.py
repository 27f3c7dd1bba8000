"""Whether a stored result is what the code computes today: its first samples, computed again.

`stored` reads the folder of a result, `smaller` asks for its first samples alone, `compare` tells what differs,
`verification` puts them together, `report` shows it. Nothing is written.
"""
