"""``lade-bench``: plain against automatic decoding, the machine's limits, step times."""
