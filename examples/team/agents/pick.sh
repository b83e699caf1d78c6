# Adds toolz.dicttoolz.pick. Nobody else is at that file.
cat >> toolz/dicttoolz.py <<'PY'


def pick(allowed, d):
    """ The items of a dict whose keys are allowed

    >>> pick(['a'], {'a': 1, 'b': 2})
    {'a': 1}
    """
    return {key: d[key] for key in allowed if key in d}
PY
