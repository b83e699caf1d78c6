# Adds a module of strings.
cat > toolz/strings.py <<'PY'
def words(text):
    """ Words in lower case """
    return text.lower().split()
PY
