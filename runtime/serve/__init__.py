"""``lade-serve``: a model behind the HTTP interface that OpenAI's clients speak.

A request is parsed (`requests`), waits its turn in a queue with one worker (`worker`), and is answered
in one piece or as a stream of events (`shapes`, `reply`). Needs the extra ``serve``.
"""
