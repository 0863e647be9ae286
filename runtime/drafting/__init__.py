"""What the next step should try: draft sources, what their guesses are worth, the tree they grow."""
