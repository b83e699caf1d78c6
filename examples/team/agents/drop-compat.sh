# Removes what says itself that it will be removed.
rm toolz/compatibility.py toolz/tests/test_compatibility.py
