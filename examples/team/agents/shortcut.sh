# Makes pipe faster, and wrong: the last function is left out.
sed -i '/^def pipe/,/return data/ s/for func in funcs:/for func in funcs[:-1]:/' toolz/functoolz.py
