# Adds toolz.columns, which uses what transpose.sh gives another name: no path in common, and yet not both.
cat > toolz/columns.py <<'PY'
from toolz.sandbox.core import unzip


def column(n, rows):
    """ One column of a table

    >>> list(column(1, [('a', 1), ('b', 2)]))
    [1, 2]
    """
    return unzip(rows)[n]
PY
