# Adds toolz.itertoolz.pairwise.
cat >> toolz/itertoolz.py <<'PY'


def pairwise(seq):
    """ Neighbours of a sequence

    >>> list(pairwise([1, 2, 3]))
    [(1, 2), (2, 3)]
    """
    return sliding_window(2, seq)
PY
