"""Release of a bundle: which users it serves (arms), and the commands that change that on a cluster."""
