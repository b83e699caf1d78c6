# Adds another module of strings, under the name that strings.sh chose.
cat > toolz/strings.py <<'PY'
def lines(text):
    """ Lines that are not empty """
    return [line for line in text.splitlines() if line]
PY
