# Adds toolz.itertoolz.chunked, at the same place as pairwise.sh.
cat >> toolz/itertoolz.py <<'PY'


def chunked(n, seq):
    """ Lists of n, the last one maybe shorter

    >>> list(chunked(2, [1, 2, 3]))
    [[1, 2], [3]]
    """
    return map(list, partition_all(n, seq))
PY
